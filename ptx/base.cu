// SPDX-License-Identifier: Apache-2.0

// What the kernels share, joined in front of them: NVRTC takes one text.
//
// No header is included: NVRTC's differ from version to version, and a GPU
// host may have none.
//
// Every access to memory is written as ld.global or st.global in inline PTX.
// What is read may be host memory that another GPU has just written, so the
// compiler must not be free to pick the non-coherent path (ld.global.nc); and
// the addresses arrive as integers, which it would only read generically.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define GP_DEV static __device__ __forceinline__

// Bits and numbers.

GP_DEV u64 join(u32 lo, u32 hi) { u64 r; asm("mov.b64 %0, {%1, %2};" : "=l"(r) : "r"(lo), "r"(hi)); return r; }
GP_DEV void split(u64 v, u32 *lo, u32 *hi) { asm("mov.b64 {%0, %1}, %2;" : "=r"(*lo), "=r"(*hi) : "l"(v)); }
GP_DEV float float_of(u32 b) { float r; asm("mov.b32 %0, %1;" : "=f"(r) : "r"(b)); return r; }
GP_DEV u32 bits_of(float v) { u32 r; asm("mov.b32 %0, %1;" : "=r"(r) : "f"(v)); return r; }
GP_DEV double double_of(u64 b) { double r; asm("mov.b64 %0, %1;" : "=d"(r) : "l"(b)); return r; }
GP_DEV u64 bits_of(double v) { u64 r; asm("mov.b64 %0, %1;" : "=l"(r) : "d"(v)); return r; }

// Memory.

GP_DEV void load16(u32 *w, u64 a) {
	asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "l"(a));
}
GP_DEV void store16(u64 a, const u32 *w) {
	asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" : : "l"(a), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]));
}
GP_DEV u32 load4(u64 a) { u32 r; asm volatile("ld.global.u32 %0, [%1];" : "=r"(r) : "l"(a)); return r; }
GP_DEV void store4(u64 a, u32 v) { asm volatile("st.global.u32 [%0], %1;" : : "l"(a), "r"(v)); }
GP_DEV u64 load8(u64 a) { u64 r; asm volatile("ld.global.u64 %0, [%1];" : "=l"(r) : "l"(a)); return r; }
GP_DEV void store8(u64 a, u64 v) { asm volatile("st.global.u64 [%0], %1;" : : "l"(a), "l"(v)); }
