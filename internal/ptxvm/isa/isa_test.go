// SPDX-License-Identifier: Apache-2.0

package isa

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAllowed(t *testing.T) {
	for _, op := range []string{
		"add.rn.f32", "min.NaN.f32", "cvt.rn.bf16.f32", "cvt.f32.f16", "cvt.rn.f16.f32", "div.rn.f64",
		"ld.global.v4.u32", "st.global.u8", "ld.param.u64", "bra.uni", "mul.wide.u32", "setp.num.f64",
	} {
		require.NoError(t, Allowed(op), op)
	}
	for op, why := range map[string]string{
		"min.NaN.f64":         "not in the table", // exists in no version; clang lets it pass
		"max.NaN.f64":         "not in the table",
		"cvt.rn.bf16.s32":     "needs PTX 7.8 and sm_90",
		"cvt.f32.bf16":        "needs PTX 7.1 and sm_90",
		"ld.global.nc.v4.u32": "stale data",
		"ld.global.nc.f32":    "stale data",
		"fma.rn.f32":          "not in the table", // a contraction: the rungs would differ
		"mad.rn.f32":          "not in the table",
		"add.f32":             "not in the table", // without .rn ptxas may contract it
		"mul.f32":             "not in the table",
		"add.rn.ftz.f32":      "not in the table",
		"div.approx.f32":      "not in the table",
		"div.full.f32":        "not in the table",
		"ld.u32":              "not in the table", // generic
		"atom.global.add.u32": "not in the table",
		"ld.global.v4.u64":    "not in the table",
		"redux.sync.or.b32":   "not in the table", // a warp's threads do not meet
		"shfl.sync.idx.b32":   "not in the table",
		"bar.warp.sync":       "not in the table",
	} {
		require.ErrorContains(t, Allowed(op), why, op)
	}
}

const good = `
.version 7.0
.target sm_80
.address_size 64
.visible .entry k(
	.param .u64 k_param_0,
	.param .align 8 .b8 k_param_1[128]
)
.maxntid 512, 1, 1
{
	.reg .pred 	%p<3>;
	.reg .b64 	%rd<8>;
	.shared .align 8 .b8 a[32];
	.shared .align 4 .u32 b;
	ld.param.u64 	%rd1, [k_param_0];
	setp.eq.s64 	%p1, %rd1, 0;
	@!%p1 bra 	$L__BB0_1;
	add.s64 	%rd2, %rd1, 1; // a comment
$L__BB0_1:
	ret;
}
`

func TestParse(t *testing.T) {
	m, err := Parse(good)
	require.NoError(t, err)
	require.Equal(t, "7.0", m.Version)
	require.Len(t, m.Entries, 1)
	e := m.Entries[0]
	require.Equal(t, []Param{{"k_param_0", 0, 8}, {"k_param_1", 8, 128}}, e.Params)
	require.Equal(t, map[string]int{"%p": 0, "%rd": 8}, e.Regs)
	require.Equal(t, []Param{{"a", 0, 32}, {"b", 32, 4}}, e.Shared)
	require.Equal(t, 4, e.Labels["$L__BB0_1"])
	require.Equal(t, "%p1", e.Code[2].Guard)
	require.True(t, e.Code[2].Negate)
	require.Equal(t, []string{"%rd2", "%rd1", "1"}, e.Code[3].Args)
	require.NoError(t, Check(good, []string{"k"}))
}

func TestCheckFaults(t *testing.T) {
	for why, c := range map[string]struct {
		from, to string
		entries  []string
	}{
		"entry j is missing":       {entries: []string{"k", "j"}},
		"entry k is not expected":  {entries: nil},
		".version 7.1":             {".version 7.0", ".version 7.1", []string{"k"}},
		".target sm_90":            {".target sm_80", ".target sm_90", []string{"k"}},
		"line 18: frob.s64":        {"add.s64", "frob.s64", []string{"k"}},
		"ends beyond the register": {"add.s64 	%rd2, %rd1, 1", "bfe.u64 %rd2, %rd1, 63, 63", []string{"k"}},
		"unknown directive":        {".address_size 64", ".address_size 32", []string{"k"}},
		"unknown kernel directive": {".maxntid", ".reqntid", []string{"k"}},
		"not an instruction":       {"ret;", "ret", []string{"k"}},
		"k: no end":                {"ret;\n}", "ret;\n", []string{"k"}},
	} {
		text := good
		if c.from != "" {
			text = strings.Replace(good, c.from, c.to, 1)
			require.NotEqual(t, good, text, why)
		}
		require.ErrorContains(t, Check(text, c.entries), why)
	}
}

func TestBarriers(t *testing.T) {
	const source = "// __syncthreads() here does not count\n__global__ void k() {\n__syncthreads(); // __syncthreads()\n}\n"
	with := func(barriers string) string { return strings.Replace(good, "ret;", barriers+"ret;", 1) }
	require.NoError(t, Barriers(with("bar.sync 0;\n"), source))
	require.ErrorContains(t, Barriers(with(""), source), "0 barriers where the source has 1")
	require.ErrorContains(t, Barriers(with("bar.sync 0;\nbar.sync 0;\n"), source), "2 barriers where the source has 1")
	require.ErrorContains(t, Barriers(with("@%p1 bar.sync 0;\n"), source), "some threads only")
}
