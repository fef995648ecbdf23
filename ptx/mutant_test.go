// SPDX-License-Identifier: Apache-2.0

package ptx

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/dtype"
	"github.com/geforce-p2p/geforce-p2p/internal/kernel"
	"github.com/geforce-p2p/geforce-p2p/internal/ptxvm"
)

// A mutation is something wrong with a kernel that its tests must find: at all
// places of the entry's PTX that the pattern matches, or at each of them alone.
type mutation struct {
	what          string
	module        kernel.Module
	entry         string // "" for the only one
	pattern, with string
	places        int   // at least so many are there
	each          bool  // each place makes a mutant of its own
	every         int   // of those, each so many-th outside of soak runs, 0 for all
	same          []int // of those, what changes nothing that a test could see
}

var (
	bulkF32 = kernel.ExchangeModule(kernel.TwoShot, dtype.Float32)
	llF32   = kernel.ExchangeModule(kernel.OneShot, dtype.Float32)
	gatherU = kernel.ExchangeModule(kernel.Gather, 0)
)

func foldMutation(what string, t dtype.Type, op dtype.Op, pattern, with string, places int) mutation {
	return mutation{what: what, module: kernel.FoldModule(t), entry: kernel.FoldEntry(t, op), pattern: pattern, with: with, places: places}
}

// alone makes a mutant of each place.
func (m mutation) alone() mutation { m.each = true; return m }

const plainStore = `st\.global\.(v[24]\.)?u(8|16|32|64)[^;]*;`

var mutations = []mutation{
	{what: "a barrier is dropped", each: true, module: bulkF32, pattern: `bar\.sync\s+0;`, places: 2},
	{what: "a release is only relaxed", module: bulkF32, pattern: `st\.release\.`, with: `st.relaxed.`, places: 1},
	{what: "an acquire is only relaxed", module: bulkF32, pattern: `ld\.acquire\.`, with: `ld.relaxed.`, places: 1},
	{what: "a flag is not asked for its round", module: bulkF32, pattern: `setp\.le\.u32\s+(%p\d+), %r\d+, %r\d+;(\n\s+and\.pred)`, with: `mov.pred $1, -1;$2`, places: 1},
	{what: "a flag is not asked for its epoch", module: bulkF32, pattern: `setp\.eq\.s32\s+(%p\d+), %r\d+, %r\d+;(\n\s+cvt\.u32\.u64[^;]*;\n\s+setp\.le)`, with: `mov.pred $1, -1;$2`, places: 1},
	{what: "a flag is not posted", module: bulkF32, pattern: `st\.release\.[^;]*;`, places: 1},
	{what: "a store is dropped", each: true, module: bulkF32, pattern: plainStore, places: 20},
	{what: "the stride is of three blocks", module: bulkF32, pattern: `%nctaid\.x`, with: `3`, places: 1},
	{what: "the fold starts at another rank", module: bulkF32, pattern: `add\.rn\.f32\s+(%f\d+), (%f\d+), (%f\d+);`, with: `mov.f32 $1, $2;`, places: 10},

	{what: "the barrier is dropped", module: llF32, pattern: `bar\.sync\s+0;`, places: 1},
	{what: "a word is stored plainly", each: true, module: llF32, pattern: `st\.volatile\.global\.v2`, with: `st.global.v2`, places: 10},
	{what: "a word is loaded plainly", each: true, every: 3, module: llF32, pattern: `ld\.volatile\.global\.v2`, with: `ld.global.v2`, places: 18},
	{what: "a word is not asked for its epoch", each: true, every: 3, module: llF32, pattern: `(\}, %rd\d+;\n\s+)setp\.ne\.s32\s+(%p\d+), %r\d+, %r\d+;`, with: `${1}mov.pred $2, 0;`, places: 36,
		same: []int{0, 1, 18, 19}}, // a hint's, which only say when to read
	{what: "a store is dropped", each: true, module: llF32, pattern: plainStore, places: 9},
	{what: "the stride is of three blocks", module: llF32, pattern: `%nctaid\.x`, with: `3`, places: 1},

	{what: "the barrier is dropped", module: gatherU, pattern: `bar\.sync\s+0;`, places: 1},
	{what: "a word is stored plainly", each: true, module: gatherU, pattern: `st\.volatile\.global\.v2`, with: `st.global.v2`, places: 1},
	{what: "a word is loaded plainly", each: true, module: gatherU, pattern: `ld\.volatile\.global\.v2`, with: `ld.global.v2`, places: 9},
	{what: "a store is dropped", each: true, module: gatherU, pattern: plainStore, places: 6},
	{what: "the stride is of three blocks", module: gatherU, pattern: `%nctaid\.x`, with: `3`, places: 1},

	{what: "the stride is of three blocks", module: kernel.CopyModule(), pattern: `%nctaid\.x`, with: `3`, places: 1},
	{what: "a store is dropped", each: true, module: kernel.CopyModule(), pattern: plainStore, places: 29},

	foldMutation("the stride is of three blocks", dtype.Float32, dtype.Sum, `%nctaid\.x`, `3`, 1),
	foldMutation("a store is dropped, of the tail or of a vector", dtype.Float32, dtype.Sum, plainStore, ``, 2).alone(),
	foldMutation("a store is dropped, of the tail or of a vector", dtype.Int8, dtype.Sum, plainStore, ``, 4).alone(),
	foldMutation("a vector is of two inputs", dtype.Float32, dtype.Sum, `add\.rn\.f32\s+(%f\d+), (%f\d+), (%f\d+);`, `mov.f32 $1, $2;`, 20),
	foldMutation("a product is a sum", dtype.Float32, dtype.Prod, `mul\.rn\.f32`, `add.rn.f32`, 20),
	foldMutation("NaN is not passed on", dtype.Float32, dtype.Min, `min\.NaN\.f32`, `min.f32`, 20),
	foldMutation("float instead of double", dtype.Float64, dtype.Sum, `add\.rn\.f64\s+(%fd\d+), (%fd\d+), (%fd\d+);`,
		"cvt.rn.f32.f64 %ff1, $2;\ncvt.rn.f32.f64 %ff2, $3;\nadd.rn.f32 %ff1, %ff1, %ff2;\ncvt.f64.f32 $1, %ff1;", 8),
	foldMutation("the quotient is a product", dtype.Float64, dtype.Avg, `div\.rn\.f64`, `mul.rn.f64`, 3),
	foldMutation("zeros are alike", dtype.Float64, dtype.Min, `setp\.lt\.s64`, `setp.gt.s64`, 4),
	foldMutation("NaN counts as a number", dtype.Float64, dtype.Max, `setp\.num\.f64`, `setp.geu.f64`, 8),
	foldMutation("bfloat16 is cut and not rounded", dtype.BFloat16, dtype.Sum, `cvt\.rn\.bf16\.f32\s+(%rs\d+), (%f\d+);`,
		"mov.b32 %rx1, $2;\nshr.u32 %rx1, %rx1, 16;\ncvt.u16.u32 $1, %rx1;", 4),
	foldMutation("a signed element has no sign", dtype.Int8, dtype.Sum, `cvt\.s64\.s8`, `cvt.u64.u8`, 8),
	foldMutation("a signed quotient is unsigned", dtype.Int32, dtype.Avg, `div\.s64`, `div.u64`, 3),
	foldMutation("a maximum is unsigned", dtype.Int64, dtype.Max, `max\.s64`, `max.u64`, 4),
	foldMutation("half of an accumulator", dtype.Uint8, dtype.Avg, `add\.s64\s+(%rd\d+), (%rd\d+), (%rd\d+);`, "add.s64 $1, $2, $3;\nand.b64 $1, $1, 255;", 8),
}

// mutantRegs are the registers that mutants use beside the kernel's.
const mutantRegs = "{\n\t.reg .f32 %ff<3>;\n\t.reg .b32 %rx<3>;\n"

// texts are a mutation's mutants: whole modules with the one entry.
func (m *mutation) texts(t *testing.T) []string {
	text, err := Embedded(m.module)
	require.NoError(t, err)
	entry := m.name()
	head, _, _ := strings.Cut(text, ".visible .entry")
	from := strings.Index(text, ".visible .entry "+entry+"(")
	require.GreaterOrEqual(t, from, 0, entry)
	text = text[from:]
	text = text[:strings.Index(text, "\n}\n")+3]
	re := regexp.MustCompile(m.pattern)
	require.GreaterOrEqual(t, len(re.FindAllString(text, -1)), m.places)
	text = strings.Replace(text, "{\n", mutantRegs, 1)
	if !m.each {
		return []string{head + re.ReplaceAllString(text, m.with)}
	}
	var all []string
	for _, at := range re.FindAllStringSubmatchIndex(text, -1) {
		b := re.ExpandString([]byte(text[:at[0]]), m.with, text, at)
		all = append(all, head+string(b)+text[at[1]:])
	}
	return all
}

func (m *mutation) name() string {
	if m.entry != "" {
		return m.entry
	}
	return Entries(m.module)[0]
}

// small checks a program as the tests of its kernel do, in small: what it finds
// is an error.
func (m *mutation) small(t *testing.T, p *ptxvm.Program) error {
	r := rand.New(rand.NewPCG(41, 42))
	switch m.module.Kernel {
	case "fold":
		typ, op, _ := kernel.ParseEntry(m.name())
		for _, count := range []int{5, 70, 333} {
			a := newArena(count)
			for _, s := range shapes(typ) {
				if err := a.foldOn(p, a.newFold(typ, op, count, s, true, r), 2, 32); err != nil {
					return err
				}
			}
		}
	case "copy":
		for _, n := range []int{37, 4099} {
			a := newArena(n/8 + 2)
			for _, off := range copyOffsets {
				if err := a.copyOn(p, n, off, r); err != nil {
					return err
				}
			}
		}
	default:
		// The last has two batches of peers, and in two shots too much to be read
		// without a hint.
		for i, e := range []struct{ n, count, grid, block int }{{2, 301, 1, 32}, {2, 40, 2, 64}, {3, 37, 2, 64}, {10, 67, 1, 32}, {16, 601, 1, 32}} {
			off := (i + 1) % 2 * 4
			c := newCrew(t, e.n, 4*e.count, 4*e.count*e.n, off, crewArena(e.n, 4*e.count+32, 4*e.count*e.n+32))
			c.epoch, c.patient = 7, 100*time.Microsecond
			for _, k := range []kernel.Kind{kernel.OneShot, kernel.TwoShotLL, kernel.TwoShot} {
				if kernel.ExchangeModule(k, dtype.Float32) != m.module || e.n == 16 && k != kernel.TwoShotLL {
					continue
				}
				for j := range 3 {
					if err := c.reduceOn(r, p, k, dtype.Float32, dtype.Sum, e.count-j, e.grid, e.block, j%2 == 0, false); err != nil {
						return err
					}
					if e.n == 16 {
						break
					}
				}
			}
			if m.module == gatherU {
				counts := []int{e.count / 4 * 8, 4 * e.count, 4*e.count - 3}
				if e.n == 16 {
					counts = []int{147}
				}
				for _, count := range counts {
					if err := c.gatherOn(r, p, count, e.grid, false); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// The tests above find what could be wrong with a kernel: of each mutation, each
// mutant, and nothing where there is none.
func TestMutants(t *testing.T) {
	if testing.Short() || slow {
		t.Skip("hundreds of kernels")
	}
	for _, m := range mutations {
		t.Run(fmt.Sprint(m.name(), ": ", m.what), func(t *testing.T) {
			t.Parallel()
			require.NoError(t, m.small(t, compileEmbedded(t, m.module, m.name())))
			texts := m.texts(t)
			for i, text := range texts {
				if m.every > 0 && i%m.every != 0 && os.Getenv("GP_SOAK") == "" {
					continue
				}
				ps, err := ptxvm.Load(text)
				require.NoError(t, err)
				err = m.small(t, ps[m.name()])
				if found := err != nil; found == slices.Contains(m.same, i) {
					t.Errorf("%s: %s: mutant %d of %d: found: %t", m.name(), m.what, i, len(texts), found)
				}
			}
		})
	}
}
