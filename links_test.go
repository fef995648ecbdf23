// SPDX-License-Identifier: Apache-2.0

package geforcep2p

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A link of Markdown, [text](target) or a reference's definition.
var linkPattern = regexp.MustCompile(`\]\(([^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+"[^"]*")?\)|(?m:^ {0,3}\[[^\]]+\]:\s+(\S+))`)

var (
	fencePattern   = regexp.MustCompile("(?ms)^(```|~~~).*?^(```|~~~)[ \t]*$")
	codePattern    = regexp.MustCompile("`[^`\n]*`")
	headingPattern = regexp.MustCompile(`(?m)^#{1,6} +(.*?)[ #]*$`)
)

// anchors are the fragments by which GitHub knows a document's headings.
func anchors(doc string) map[string]bool {
	known := map[string]bool{}
	for _, h := range headingPattern.FindAllStringSubmatch(fencePattern.ReplaceAllString(doc, ""), -1) {
		var b strings.Builder
		for _, r := range strings.ToLower(h[1]) {
			switch {
			case r == ' ':
				b.WriteByte('-')
			case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > 127:
				b.WriteRune(r)
			}
		}
		known[b.String()] = true
	}
	return known
}

// badLinks are the links of a document that lead nowhere. exists tells of a path
// from the repository's root, read gives a document's text. The web is not asked:
// of an address of it only the form is judged.
func badLinks(path, doc string, exists func(string) bool, read func(string) string) (bad []string) {
	text := codePattern.ReplaceAllString(fencePattern.ReplaceAllString(doc, ""), "")
	for _, m := range linkPattern.FindAllStringSubmatch(text, -1) {
		link := m[1] + m[2]
		u, err := url.Parse(link)
		switch {
		case err != nil || link == "":
			bad = append(bad, link)
			continue
		case u.Scheme != "":
			if u.Scheme != "https" || !strings.Contains(u.Host, ".") {
				bad = append(bad, link)
			}
			continue
		}
		target, other := path, doc
		if u.Path != "" {
			target = filepath.ToSlash(filepath.Join(filepath.Dir(path), filepath.FromSlash(u.Path)))
			if strings.HasPrefix(target, "..") || !exists(target) {
				bad = append(bad, link)
				continue
			}
		}
		if u.Fragment != "" {
			if target != path {
				other = read(target)
			}
			if !anchors(other)[u.Fragment] {
				bad = append(bad, link)
			}
		}
	}
	return bad
}

// TestLinks: every link between the documents of the repository leads somewhere.
func TestLinks(t *testing.T) {
	var docs []string
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "build" || len(path) > 1 && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case filepath.Ext(path) == ".md":
			docs = append(docs, filepath.ToSlash(path))
		}
		return nil
	}))
	require.Contains(t, docs, "README.md")
	read := func(path string) string {
		b, err := os.ReadFile(filepath.FromSlash(path))
		require.NoError(t, err)
		return string(b)
	}
	exists := func(path string) bool {
		_, err := os.Stat(filepath.FromSlash(path))
		return err == nil
	}
	for _, path := range docs {
		require.Empty(t, badLinks(path, read(path), exists, read), "links of %s that lead nowhere", path)
	}
}

// TestBadLinks: a link that leads nowhere is found.
func TestBadLinks(t *testing.T) {
	files := map[string]string{
		"README.md":   "# Top\n\n## What counts, and what `does` not?\n",
		"docs/a.md":   "## Here\n",
		"docs/c.json": "{}",
	}
	exists := func(path string) bool { _, ok := files[path]; return ok }
	read := func(path string) string { return files[path] }
	for link, good := range map[string]bool{
		"a.md":                   true,
		"c.json":                 true,
		"../README.md":           true,
		"../README.md#top":       true,
		"a.md#here":              true,
		"#here":                  true,
		"https://example.com/x":  true,
		"https://a.b/x_(y)":      true,
		"b.md":                   false,
		"../../x.md":             false,
		"/README.md":             false,
		"../README.md#nothing":   false,
		"#nothing":               false,
		"http://example.com/":    false,
		"https://nowhere/":       false,
		"":                       false,
		"../README.md#Top":       false,
		"https://example.com/%z": false,
		"../README.md#what-counts-and-what-does-not": true,
	} {
		doc := "## Here\n\nSee [it](" + link + ").\n"
		require.Equal(t, good, len(badLinks("docs/b.txt", doc, exists, read)) == 0, "%q", link)
		if link != "" {
			doc = "## Here\n\n[it]: " + link + "\n"
			require.Equal(t, good, len(badLinks("docs/b.txt", doc, exists, read)) == 0, "%q as a reference", link)
		}
	}
	require.Empty(t, badLinks("docs/b.txt", "```\n[a](b)\n```\nand `[a](b)`\n", exists, read), "code is no link")
}
