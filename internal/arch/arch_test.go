// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/geforce-p2p/geforce-p2p"

// allowed says what each package may import of this module, outside of tests.
// A package is judged by the longest key that it equals or lies below. "x/..."
// allows x and all below it. Go itself keeps a/internal/b within a.
//
// The arrows: cmd, examples -> gp, probe -> ptx -> nvrtc, cuda -> internal.
var allowed = map[string][]string{
	".": nil,

	"cmd":      {"gp/...", "probe/...", "ptx", "nvrtc", "cuda/...", "internal/..."},
	"examples": {"gp/...", "probe/...", "cuda/..."}, // what a user can import

	"bench/figures":  nil,
	"bench/modelled": {"gp", "cuda/..."}, // on the simulator alone
	"bench/multi":    nil,

	"gp":                 {"ptx", "cuda", "gp/internal/...", "internal/..."},
	"gp/lowlevel":        {"gp", "cuda", "gp/internal/...", "internal/..."},
	"gp/internal/bridge": {"cuda", "internal/..."},
	// Plans are checked and run as data, without CUDA. kernel has the reference
	// arithmetic that the interpreter runs, and the most inputs of a fold.
	"gp/internal/plan": {"internal/dtype", "internal/kernel"},

	"probe":      {"probe/nvml", "cuda", "internal/..."},
	"probe/nvml": {"internal/dl"},
	// Not of probe, which would link the simulator into every program.
	"probe/nvml/nvmlsim": {"probe/nvml", "cuda/sim"},

	"ptx":                 {"nvrtc", "cuda", "internal/..."},
	"ptx/internal/genptx": {"internal/ptxvm/isa", "internal/dtype", "internal/kernel"},

	"nvrtc":    {"internal/dl"},
	"cuda":     {"internal/api", "internal/hook", "internal/libcuda"},
	"cuda/sim": {"cuda", "internal/api", "internal/hook", "internal/kernel", "internal/dtype", "internal/pci", "internal/ptxvm"},

	"internal/api":     nil,
	"internal/api/tap": {"internal/api"},
	"internal/hook":    {"internal/api"},
	"internal/dl":      nil,
	"internal/libcuda": {"internal/api", "internal/dl", "internal/gang"},
	"internal/dtype":   nil,
	"internal/gang":    nil,
	"internal/kernel":  {"internal/dtype"},
	// PTX as data and as what runs: generated, checked and simulated from here.
	"internal/ptxvm":     {"internal/ptxvm/isa", "internal/dtype", "internal/kernel"},
	"internal/ptxvm/isa": nil,
	"internal/pci":       nil,
	"internal/p2pcheck":  {"cuda"}, // shared by gp and probe, which do not import each other
	"internal/arch":      nil,

	// These are for tests: testOnly.
	"internal/testenv":         nil,
	"internal/gputest":         {"cuda/...", "internal/api/...", "internal/hook"},
	"internal/libcuda/fakelib": {"internal/dl", "internal/testenv"},
}

// testOnly are packages that only tests, and each other, may import. They alone
// may import "testing" outside of tests.
var testOnly = []string{"internal/testenv", "internal/gputest", "internal/libcuda/fakelib", "internal/arch"}

// outside says who may import what is neither of this module nor of the
// standard library, outside of tests.
var outside = map[string][]string{
	"github.com/ebitengine/purego": {"internal/dl"},
	"golang.org/x/sys":             {"internal/dl", "internal/libcuda", "cuda/sim"}, // sim: thread ids
}

// outsideTests says the same of tests; testify and goleak are for all of them.
var outsideTests = map[string][]string{
	"github.com/ebitengine/purego": {"internal/dl", "internal/libcuda"}, // callbacks of C stand-ins
	"golang.org/x/sys":             {"internal/dl", "internal/libcuda"},
	"github.com/stretchr/testify":  {"..."},
	"go.uber.org/goleak":           {"..."},
}

type pkg struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
	CgoFiles                           []string
}

// list is all packages of the module as a target sees them.
func list(t *testing.T, goos, goarch string) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports,CgoFiles", module+"/...")
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s", stderr.String())
	var ps []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return ps
		}
		require.NoError(t, err)
		ps = append(ps, p)
	}
}

// watch looks at every Go file of the module, so that "go test" does not answer
// from its cache after one has changed: it cannot know what "go list" reads.
func watch(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2:
			return fs.SkipDir
		case strings.HasSuffix(path, ".go"):
			_, err = os.Stat(path)
		}
		return err
	})
	require.NoError(t, err)
}

// relative is a package's path within the module, "." for its root.
func relative(path string) (rel string, ours bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

// covers tells whether a pattern of the tables means a package.
func covers(pattern, path string) bool {
	if base, deep := strings.CutSuffix(pattern, "..."); deep {
		base = strings.TrimSuffix(base, "/")
		return base == "" || path == base || strings.HasPrefix(path, base+"/")
	}
	return path == pattern
}

func anyCovers(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return covers(p, path) })
}

// rule finds the entry of allowed that judges a package.
func rule(rel string) (may []string, ok bool) {
	for at := rel; ; {
		if may, ok := allowed[at]; ok {
			return may, true
		}
		i := strings.LastIndexByte(at, '/')
		if i < 0 {
			return nil, false
		}
		at = at[:i]
	}
}

func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// thirdParty finds the entry of a table that an import falls under.
func thirdParty(table map[string][]string, path string) (who []string, ok bool) {
	for mod, who := range table {
		if covers(mod+"/...", path) {
			return who, true
		}
	}
	return nil, false
}

// judge lists what a package imports against the rules.
func judge(p pkg) (faults []string) {
	rel, _ := relative(p.ImportPath)
	fault := func(format string, args ...any) { faults = append(faults, rel+": "+fmt.Sprintf(format, args...)) }
	may, ok := rule(rel)
	if !ok {
		fault("no rule in internal/arch says what it may import")
	}
	forTests := anyCovers(testOnly, rel)
	if len(p.CgoFiles) > 0 {
		fault("has cgo files: %v", p.CgoFiles)
	}
	for _, imp := range p.Imports {
		to, ours := relative(imp)
		switch {
		case imp == "C":
			fault(`imports "C"`)
		case imp == "testing" && !forTests:
			fault("imports testing outside of tests")
		case ours && anyCovers(testOnly, to) && !forTests:
			fault("imports %s, which is for tests", to)
		case ours && !anyCovers(may, to):
			fault("imports %s", to)
		case !ours && !standard(imp):
			if who, known := thirdParty(outside, imp); !known || !anyCovers(who, rel) {
				fault("imports %s", imp)
			}
		}
	}
	for _, imp := range slices.Concat(p.TestImports, p.XTestImports) {
		_, ours := relative(imp)
		switch {
		case imp == "C":
			fault(`a test imports "C"`)
		case !ours && !standard(imp):
			if who, known := thirdParty(outsideTests, imp); !known || !anyCovers(who, rel) {
				fault("a test imports %s", imp)
			}
		}
		// gp and probe do not know each other, not even in tests.
		to, _ := relative(imp)
		if covers("gp/...", rel) && covers("probe/...", to) || covers("probe/...", rel) && covers("gp/...", to) {
			fault("a test imports %s", to)
		}
	}
	return faults
}

// Every package of the module, as each system that we build for sees it,
// imports only what the tables allow.
func TestLayering(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command: this machine was only given the test binary")
	}
	watch(t)
	for _, target := range []string{"linux/amd64", "windows/amd64", "darwin/arm64", "freebsd/amd64"} {
		goos, goarch, _ := strings.Cut(target, "/")
		ps := list(t, goos, goarch)
		require.NotEmpty(t, ps)
		for _, p := range ps {
			for _, f := range judge(p) {
				t.Errorf("%s: %s", target, f)
			}
		}
	}
}

// The tables refuse what they are there to refuse.
func TestJudge(t *testing.T) {
	p := func(rel string, imports ...string) pkg {
		q := pkg{ImportPath: module + "/" + rel}
		for _, i := range imports {
			if strings.HasPrefix(i, "./") {
				i = module + i[1:]
			}
			q.Imports = append(q.Imports, i)
		}
		return q
	}
	for name, q := range map[string]pkg{
		"gp imports probe":       p("gp", "./probe"),
		"probe imports gp":       p("probe", "./gp"),
		"probe imports plan":     p("probe/sub", "./gp/internal/plan"),
		"cuda imports ptx":       p("cuda", "./ptx"),
		"cuda imports sim":       p("cuda", "./cuda/sim"),
		"gp imports sim":         p("gp", "./cuda/sim"),
		"ptx imports gp":         p("ptx", "./gp"),
		"nvrtc imports cuda":     p("nvrtc", "./cuda"),
		"dl imports cuda":        p("internal/dl", "./cuda"),
		"plan imports cuda":      p("gp/internal/plan", "./cuda"),
		"plan imports api":       p("gp/internal/plan", "./internal/api"),
		"cuda imports purego":    p("cuda", "github.com/ebitengine/purego"),
		"libcuda imports purego": p("internal/libcuda", "github.com/ebitengine/purego"),
		"gp imports x/sys":       p("gp", "golang.org/x/sys/unix"),
		"gp imports testify":     p("gp", "github.com/stretchr/testify/require"),
		"gp imports go-nvml":     p("gp", "github.com/NVIDIA/go-nvml/pkg/nvml"),
		"gp imports testing":     p("gp", "testing"),
		"gp imports gputest":     p("gp", "./internal/gputest"),
		"cgo":                    p("cuda", "C"),
		"unknown package":        p("newcomer"),
		"example of internals":   p("examples/copy", "./internal/api"),
		"gp's test of probe":     {ImportPath: module + "/gp", XTestImports: []string{module + "/probe"}},
		"test of cgo":            {ImportPath: module + "/gp", TestImports: []string{"C"}},
		"test of go-nvml":        {ImportPath: module + "/probe", TestImports: []string{"github.com/NVIDIA/go-nvml/pkg/nvml"}},
	} {
		require.Len(t, judge(q), 1, name)
	}
	for name, q := range map[string]pkg{
		"dl imports purego":    p("internal/dl", "github.com/ebitengine/purego", "unsafe"),
		"command":              p("cmd/gp", "./gp", "./probe", "./cuda/sim", "./internal/dtype"),
		"p2pcheck":             p("internal/p2pcheck", "./cuda"),
		"sim":                  p("cuda/sim", "./cuda", "./internal/kernel"),
		"tests import testify": {ImportPath: module + "/gp", TestImports: []string{"github.com/stretchr/testify/require", module + "/internal/gputest"}},
	} {
		require.Empty(t, judge(q), name)
	}
}
