// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/geforce-p2p/geforce-p2p/internal/api"
	"github.com/geforce-p2p/geforce-p2p/internal/ptxvm"
)

// bodyPTX is a module of gp_test_body, which no Go function stands for. It has
// two addresses in %rd1 and %rd2, and %r1 is the thread's number in the grid.
func bodyPTX(body string) []byte {
	return []byte(".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry gp_test_body(\n.param .u64 a,\n.param .u64 b\n)\n{\n" +
		".reg .pred %p<9>;\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n" +
		"ld.param.u64 %rd1, [a];\nld.param.u64 %rd2, [b];\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %ntid.x;\nmad.lo.s32 %r1, %r2, %r3, %r1;\n" +
		body + "\nret;\n}\n\x00")
}

// double stores twice the 32-bit words of b to a, one each thread.
const double = "mul.wide.u32 %rd3, %r1, 4;\nadd.s64 %rd1, %rd1, %rd3;\nadd.s64 %rd2, %rd2, %rd3;\n" +
	"ld.global.u32 %r4, [%rd2];\nshl.b32 %r4, %r4, 1;\nst.global.u32 [%rd1], %r4;"

func (r *rig) body(text string) api.Function {
	r.t.Helper()
	mod, c := r.d.ModuleLoadData(bodyPTX(text), nil)
	r.ok(c)
	f, c := r.d.ModuleGetFunction(mod, "gp_test_body")
	r.ok(c)
	return f
}

func (r *rig) launchBody(f api.Function, s api.Stream, blocks uint32, a, b api.Ptr) {
	r.t.Helper()
	p := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(a)), uint64(b))
	r.ok(r.d.LaunchKernel(f, &api.Launch{Grid: [3]uint32{blocks, 1, 1}, Block: [3]uint32{64, 1, 1}, Stream: s, Params: p}))
}

// A kernel that no Go function stands for runs on device and on pinned memory.
func TestInterpret(t *testing.T) {
	r := newRig(t, Interpret())
	s := r.stream(0)
	f := r.body(double)
	dev := r.device(0, 512)
	in, inAt := r.pinned(512)
	out, outAt := r.pinned(512)
	for i := range 128 {
		binary.LittleEndian.PutUint32(in[4*i:], uint32(i)*0x01010101)
	}
	at, c := r.d.MemHostGetDevicePointer(inAt)
	r.ok(c)
	r.launchBody(f, s, 2, dev, at)
	r.launchBody(f, s, 2, dev, dev)
	r.ok(r.d.MemcpyDtoHAsync(outAt, dev, 512, s))
	r.ok(r.d.StreamSynchronize(s))
	for i := range 128 {
		require.Equal(t, uint32(i)*0x04040404, binary.LittleEndian.Uint32(out[4*i:]))
	}
	require.NoError(t, r.m.KernelFault())
	c = r.d.LaunchKernel(f, &api.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Stream: s, Params: make([]byte, 8)})
	require.Equal(t, api.InvalidValue, c, "half of the parameters")
	// A kernel of a test stays what it was.
	r.ok(r.d.LaunchKernel(r.function("gp_test_spin"), launch(s, 3)))
	r.ok(r.d.StreamSynchronize(s))
}

func TestInterpretRefuses(t *testing.T) {
	text := bodyPTX("mov.u32 %r4, 1;\nfma.rn.f32 %r4, %r4, %r4, %r4;")
	log := make([]byte, 512)
	_, c := newRig(t, Interpret()).d.ModuleLoadData(text, log)
	require.Equal(t, api.InvalidPTX, c)
	require.Contains(t, string(log), "ptxvm: gp_test_body line 19: fma.rn.f32 %r4, %r4, %r4, %r4: unknown instruction")
	_, c = newRig(t).d.ModuleLoadData(bodyPTX(double), log)
	require.Equal(t, api.InvalidPTX, c)
	require.Contains(t, string(log), "no Go function stands for entry gp_test_body")
}

// What loses the context says where it happened.
func TestInterpretFaults(t *testing.T) {
	for _, f := range []struct {
		name, body string
		bytes      uint64
		code       api.Code
		is         error
		says       string
	}{
		{"nothing there", double, 1 << 10, api.IllegalAddress, errUnreachable, "line 21: ld.global.u32"},
		{"unwritten", double, 256, api.LaunchFailed, ptxvm.ErrUnwritten, "block [1 0 0], thread [0 0 0], line 21: ld.global.u32"},
		{"misaligned", "st.global.u32 [%rd1+2], %r1;", 1 << 10, api.MisalignedAddress, ptxvm.ErrMisaligned, "line 18: st.global.u32"},
		{"another GPU's", "", 0, api.IllegalAddress, errUnreachable, "memory of GPU 1"},
	} {
		t.Run(f.name, func(t *testing.T) {
			r := newRig(t, Interpret())
			far := r.device(1, 64)
			s := r.stream(0)
			a := r.device(0, 1<<10)
			// The word that lies behind b is of nothing, or of what nothing wrote.
			b := a + 1<<10 - api.Ptr(256)
			if f.bytes == 256 {
				b = r.device(0, 1<<10)
			}
			r.ok(r.d.MemsetD8Async(b, 1, 256, s))
			text := f.body
			if text == "" {
				a, text = far, "st.global.u32 [%rd1], %r1;"
			}
			r.launchBody(r.body(text), s, 2, a, b)
			require.Equal(t, f.code, r.d.StreamSynchronize(s))
			err := r.m.KernelFault()
			require.ErrorIs(t, err, f.is)
			require.ErrorContains(t, err, f.says)
			require.ErrorContains(t, err, "gp_test_body")
			require.Equal(t, err.Error(), r.d.GetErrorString(f.code))
			require.Empty(t, r.d.GetErrorString(api.OutOfMemory))
		})
	}
}

// Bytes count as written that copies, rows of copies and fills wrote, and no others.
func TestInterpretSeesWrites(t *testing.T) {
	for off, want := range map[api.Ptr]api.Code{0: api.Success, 512: api.Success, 1024: api.LaunchFailed, 1536: api.Success, 1544: api.LaunchFailed, 2048: api.Success} {
		r := newRig(t, Interpret())
		s := r.stream(0)
		p, q := r.device(0, 4096), r.device(0, 4096)
		host, at := r.pinned(512)
		clear(host)
		r.ok(r.d.MemcpyHtoDAsync(p, at, 256, s))
		r.ok(r.d.MemsetD8Async(p+512, 7, 256, s))
		r.ok(r.d.Memcpy2DAsync(&api.Copy2D{SrcHost: at, DstDevice: p + 1536, DstPitch: 16, SrcPitch: 8, Width: 8, Height: 16}, s))
		r.ok(r.d.MemcpyDtoDAsync(p+2048, p, 256, s))
		r.launchBody(r.body("ld.global.u32 %r4, [%rd2];\nst.global.u32 [%rd1], %r4;"), s, 1, q, p+off)
		require.Equal(t, want, r.d.StreamSynchronize(s), "%d", off)
	}
}
