// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// smallPage is a page of everything, from little work: the document of some
// kinds put together.
func smallPage(t *testing.T) []byte {
	t.Helper()
	var all benchDoc
	for _, args := range []string{
		"link --sim 4x4090 --bytes 64KiB --rounds 1",
		"copy --sim 4x4090 --bytes 4KiB,64KiB,1MiB --rounds 1",
		"p2p --sim 4x4090 --bytes 64KiB --rounds 1",
		"all_reduce --sim 4x4090 --bytes 1KiB,16KiB,256KiB --rounds 1 --compare auto,direct,ring",
		"all_to_all --sim 4x4090 --bytes 16KiB --rounds 1",
	} {
		code, out, errs := noHost().run(append([]string{"bench"}, append(strings.Fields(args), "--json")...)...)
		require.Equal(t, exitOK, code, errs)
		var d benchDoc
		require.NoError(t, json.Unmarshal([]byte(out), &d))
		if all.Version == 0 {
			all = d
			continue
		}
		all.merge(&d)
	}
	all.Notes = append(all.Notes, "a note with <markup> & an ampersand")
	b := &bench{}
	e := noHost().environment(&bytes.Buffer{}, &bytes.Buffer{})
	b.sim, b.html, b.rounds = "4x4090", filepath.Join(t.TempDir(), "x"), 1
	require.NoError(t, b.start(e, "link"))
	require.NoError(t, b.judge(context.Background()))
	require.NoError(t, b.closeFiles(false))
	require.NoError(t, b.close())
	require.NotNil(t, b.verdicts)
	var page bytes.Buffer
	require.NoError(t, writePage(&page, &all, b.verdicts))
	return page.Bytes()
}

func TestBenchPage(t *testing.T) {
	if slowBuild() {
		t.Skip("what draws the page is not what these builds are for")
	}
	page := string(smallPage(t))
	for _, s := range []string{
		"<svg", "polyline", "ceiling of the same rounds", `class="map"`, "the driver refuses", "The library&#39;s staged copy, one way",
		"every figure on this page is modelled", "a note with &lt;markup&gt; &amp; an ampersand", "all pairs, both ways",
		"all_reduce: bus bandwidth, GB/s, modelled", "4 ranks, ring", "PCIe 4.0 x16",
	} {
		require.Contains(t, page, s)
	}
	// It loads nothing, and runs nothing.
	require.NotRegexp(t, regexp.MustCompile(`(?i)<script|https?://|@import|url\(|<img|<iframe|\son[a-z]+=`), page)
	require.NotContains(t, page, "ZgotmplZ", "the template found something unsafe")
	require.NotContains(t, page, "NaN")
	require.NotContains(t, page, "Inf")
	// Each line of the table, each caption and each cell of a map is labelled.
	body, _, _ := strings.Cut(page[strings.Index(page, "All results"):], "</section>")
	rows := regexp.MustCompile(`(?s)<tr><td>.*?</tr>`).FindAllString(body, -1)
	require.NotEmpty(t, rows)
	for _, r := range rows {
		require.Contains(t, r, "<td>modelled</td>")
	}
	for _, what := range []string{`<figcaption>(.*?)</figcaption>`, `<h2>(.*?)</h2>`, `<td[^>]* title="(.*?)"`, `<g class="mark[^>]*>.*?<title>(.*?)</title>`} {
		found := regexp.MustCompile(what).FindAllStringSubmatch(page, -1)
		require.NotEmpty(t, found, what)
		for _, f := range found {
			require.Contains(t, f[1], "modelled", what)
		}
	}
	// Eight GPUs side by side leave a phone room for four digits a cell.
	for _, f := range regexp.MustCompile(`<td class="h\d" title="[^"]*">(.*?)</td>`).FindAllStringSubmatch(page, -1) {
		require.LessOrEqual(t, len(f[1]), 4, f[0])
	}
	require.Contains(t, body, "<thead>", "on paper each sheet has the table's head")
	// One that was measured is not.
	var d benchDoc
	d.Machine.Name, d.Machine.GPUs = "1x GPU", []string{"GPU"}
	d.Results = []benchResult{{Op: "d2h", Case: "link.d2h", GPUs: "0", Bytes: 1 << 20, Seconds: 1e-3, Algbw: 1, Busbw: 1, Ranks: 1}}
	var out bytes.Buffer
	require.NoError(t, writePage(&out, &d, nil))
	require.NotContains(t, strings.ReplaceAll(out.String(), ".modelled", ""), "modelled")
}

// The page in a browser: GP_TEST_CHROMIUM is the program. It stands in a frame as
// wide as a phone, and in one as wide as a desk; what it comes to is written into
// the document around it.
func TestBenchPageInBrowser(t *testing.T) {
	chromium := os.Getenv("GP_TEST_CHROMIUM")
	if chromium == "" {
		t.Skip("GP_TEST_CHROMIUM does not name a browser")
	}
	page := smallPage(t)
	dir := t.TempDir()
	frames := ""
	for _, width := range []int{390, 1200} {
		frames += fmt.Sprintf(`<iframe width="%d" height="900" style="border:0" srcdoc="%s"></iframe>`, width, html.EscapeString(string(page)))
	}
	around := frames + `<script>
onload = () => {
	const out = document.createElement("pre");
	for (const f of document.querySelectorAll("iframe")) {
		const d = f.contentDocument, w = d.documentElement;
		const charts = [...d.querySelectorAll("svg")].filter(s => s.getBoundingClientRect().width > 200 && s.getBoundingClientRect().height > 20);
		const wide = [...d.querySelectorAll("svg text")].filter(x => { const b = x.getBoundingClientRect(), s = x.ownerSVGElement.getBoundingClientRect(); return b.left < s.left - 1 || b.right > s.right + 1; });
		out.textContent += "FRAME " + JSON.stringify({ width: f.width | 0, scroll: w.scrollWidth, client: w.clientWidth, charts: charts.length, lines: d.querySelectorAll("polyline").length, cells: d.querySelectorAll("table.map td").length, clipped: wide.map(x => x.textContent) }) + "\n";
	}
	document.body.prepend(out);
};
</script>`
	file := filepath.Join(dir, "around.html")
	require.NoError(t, os.WriteFile(file, []byte(around), 0o600))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir="+dir,
		"--enable-logging=stderr", "--v=0", "--window-size=1300,1000", "--virtual-time-budget=5000", "--dump-dom", "file://"+file)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), "%s", &errs)
	for line := range strings.SplitSeq(errs.String(), "\n") {
		require.NotContains(t, line, "CONSOLE", "the page says something on the console")
	}
	found := regexp.MustCompile(`FRAME (\{.*\})`).FindAllStringSubmatch(out.String(), -1)
	require.Len(t, found, 2)
	for _, f := range found {
		var x struct {
			Width, Scroll, Client, Charts, Lines, Cells int
			Clipped                                     []string
		}
		require.NoError(t, json.Unmarshal([]byte(html.UnescapeString(f[1])), &x))
		require.LessOrEqual(t, x.Scroll, x.Client, "at %d px the page scrolls sideways", x.Width)
		require.Equal(t, strings.Count(string(page), "<svg"), x.Charts, "all charts are seen")
		require.Positive(t, x.Lines)
		require.Positive(t, x.Cells)
		require.Empty(t, x.Clipped, "text of charts is cut off at %d px", x.Width)
	}
}

func TestChartTicks(t *testing.T) {
	require.Equal(t, []float64{0, 5, 10, 15, 20, 25}, linearTicks(24.9))
	require.Equal(t, []float64{0, 1}, linearTicks(0))
	require.Equal(t, []float64{10, 100, 1000, 10_000}, logTicks(14, 1400))
	require.Equal(t, []float64{20, 50, 100, 200}, logTicks(35, 107))
	require.Equal(t, []float64{1, 10}, logTicks(0, 5))
	require.Equal(t, []float64{1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22}, sizeTicks(1<<10, 4<<20))
	for _, most := range []float64{0.003, 0.9, 1, 7, 99, 101, 12345} {
		ticks := linearTicks(most)
		require.GreaterOrEqual(t, ticks[len(ticks)-1], most*(1-1e-12))
		require.LessOrEqual(t, len(ticks), 7)
		require.GreaterOrEqual(t, len(ticks), 3)
		for _, v := range logTicks(most, 2*most) {
			require.False(t, math.IsNaN(v) || v <= 0)
		}
	}
	for v, want := range map[float64]string{0: "0", 25: "25", 0.0375: "0.0375", 15.75: "15.8", 131.4: "131", 10_000: "10k", 12_345: "12.3k"} {
		require.Equal(t, want, shortNumber(v))
	}
	// A single size is a chart too.
	c := &chart{title: "one", unit: "us", lines: []chartLine{{label: "<a>", points: []chartPoint{{1024, 5}}}, {ceiling: true, points: []chartPoint{{1024, 9}}}}}
	svg := string(c.svg())
	require.NotContains(t, svg, "NaN")
	require.NotContains(t, svg, "<a>")
	require.Contains(t, svg, "&lt;a&gt;")
}
