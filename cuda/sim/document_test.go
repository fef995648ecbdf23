// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/testenv"
)

var update = flag.Bool("update", false, "write the tables of docs/simulator.md")

// compared are the comparisons that ran: several tests want them.
var compared struct {
	sync.Mutex
	by map[string][]comparison
}

// once runs comparisons that did not run yet. Under the race detector, which
// looks at each byte that is copied, they would take minutes and show nothing
// new: they are made by one thread.
func once(t testing.TB, name string, run func(testing.TB) []comparison) []comparison {
	if testenv.Race {
		t.Skip("not under the race detector: gigabytes are copied")
	}
	compared.Lock()
	defer compared.Unlock()
	if compared.by == nil {
		compared.by = map[string][]comparison{}
	}
	if _, ok := compared.by[name]; !ok {
		compared.by[name] = run(t)
	}
	return compared.by[name]
}

// freeParameters lists those of a machine.
func freeParameters(t testing.TB, name string) []NamedFigure {
	s := machineOf(t, name)
	var out []NamedFigure
	for _, f := range s.Figures() {
		if f.Fitted {
			out = append(out, f)
		}
	}
	return out
}

func TestFreeParameters(t *testing.T) {
	for name, want := range map[string][]string{
		"1xh200":     {"gpus[].d2h", "gpus[].h2d", "gpus[].duplex", "gpus[].event"},
		"2x4090":     nil,
		"4x4090":     nil,
		"8x4090":     {"gpus[].memory", "staging.rate"},
		"8x4090-p2p": {"gpus[].memory", "staging.rate", "peer.near", "peer.far"},
		"2x5090":     {"gpus[].memory", "staging.rate", "staging.duplex"},
	} {
		var got []string
		for _, f := range freeParameters(t, name) {
			got = append(got, strings.Replace(f.Name, "gpus[0]", "gpus[]", 1))
			t.Logf("%s: %s = %v %s", name, f.Name, f.Value, f.Unit)
		}
		require.Equal(t, want, got, name)
	}
}

// tables is what the document holds of the comparisons and parameters.
func tables(t testing.TB) string {
	var b strings.Builder
	for _, m := range []struct {
		name string
		run  func(testing.TB) []comparison
	}{
		{"1xh200", h200Comparisons}, {"8x4090", deniedComparisons}, {"8x4090-p2p", patchedComparisons}, {"2x5090", twoCards}, {"2xh200", pairH200Comparisons},
	} {
		free := freeParameters(t, m.name)
		fmt.Fprintf(&b, "### %s\n\n%d free parameters:", m.name, len(free))
		for i, f := range free {
			if i > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(&b, " `%s` %v %s", f.Name, f.Value, f.Unit)
		}
		b.WriteString(".\n\n" + comparisonHead)
		for _, c := range once(t, m.name, m.run) {
			b.WriteString(c.row() + "\n")
		}
		b.WriteString("\n")
	}
	b.WriteString("`2x4090` and `4x4090` have no free parameters: all their figures are other machines'.\n")
	return b.String()
}

func TestDocument(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the document is written on amd64; elsewhere a last digit may differ, because operations are fused")
	}
	beside(t, "go.mod")
	generated(t, "\n"+tables(t), "docs", "simulator.md")
}

// generated holds what a document has between its marks to what is wanted there,
// or writes it.
func generated(t *testing.T, want string, path ...string) {
	t.Helper()
	const begin, end = "<!-- tables -->\n", "<!-- end of tables -->\n"
	text := strings.ReplaceAll(string(beside(t, path...)), "\r\n", "\n")
	before, rest, ok := strings.Cut(text, begin)
	require.True(t, ok)
	old, after, ok := strings.Cut(rest, end)
	require.True(t, ok)
	if *update {
		name := filepath.Join(append([]string{"..", ".."}, path...)...)
		require.NoError(t, os.WriteFile(name, []byte(before+begin+want+end+after), 0o644))
		return
	}
	require.Equal(t, want, old, "%s is not what go test ./cuda/sim -run 'TestDocument|TestPairTable' -update writes", filepath.Join(path...))
}
