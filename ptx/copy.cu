// SPDX-License-Identifier: Apache-2.0

// gp_copy: bytes from src to dst, any alignment, no overlap; the contract is
// internal/kernel's Copy. Either side may be mapped host memory, so no access
// goes by the non-coherent path: all are ld.global and st.global, in inline PTX.

typedef unsigned int u32;
typedef unsigned long long u64;

#define GP_DEV static __device__ __forceinline__

struct V16 { u32 w[4]; };

GP_DEV void load(V16 *v, u64 a) {
	asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v->w[0]), "=r"(v->w[1]), "=r"(v->w[2]), "=r"(v->w[3]) : "l"(a));
}
GP_DEV void store(u64 a, const V16 &v) {
	asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" : : "l"(a), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]));
}

struct V8 { u64 w; };

GP_DEV void load(V8 *v, u64 a) { asm volatile("ld.global.u64 %0, [%1];" : "=l"(v->w) : "l"(a)); }
GP_DEV void store(u64 a, const V8 &v) { asm volatile("st.global.u64 [%0], %1;" : : "l"(a), "l"(v.w)); }

struct V4 { u32 w; };

GP_DEV void load(V4 *v, u64 a) { asm volatile("ld.global.u32 %0, [%1];" : "=r"(v->w) : "l"(a)); }
GP_DEV void store(u64 a, const V4 &v) { asm volatile("st.global.u32 [%0], %1;" : : "l"(a), "r"(v.w)); }

struct V2 { u32 w; };

GP_DEV void load(V2 *v, u64 a) { asm volatile("ld.global.u16 %0, [%1];" : "=r"(v->w) : "l"(a)); }
GP_DEV void store(u64 a, const V2 &v) { asm volatile("st.global.u16 [%0], %1;" : : "l"(a), "r"(v.w)); }

struct V1 { u32 w; };

GP_DEV void load(V1 *v, u64 a) { asm volatile("ld.global.u8 %0, [%1];" : "=r"(v->w) : "l"(a)); }
GP_DEV void store(u64 a, const V1 &v) { asm volatile("st.global.u8 [%0], %1;" : : "l"(a), "r"(v.w)); }

// Loads in flight together share the latency of the link, and of device memory.
#define AHEAD 4

// The n vectors of SIZE bytes that a grid shares out.
template <class V, int SIZE> GP_DEV void vectors(u64 dst, u64 src, u64 n, u64 thread, u64 stride) {
	u64 i = thread;
	for (; i + (AHEAD - 1) * stride < n; i += AHEAD * stride) {
		V v[AHEAD];
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			load(&v[j], src + (i + j * stride) * SIZE);
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			store(dst + (i + j * stride) * SIZE, v[j]);
	}
	for (; i < n; i += stride) {
		V v;
		load(&v, src + i * SIZE);
		store(dst + i * SIZE, v);
	}
}

// Bytes up to the first multiple of SIZE, the vectors, the bytes behind them.
// src and dst are congruent modulo SIZE.
template <class V, int SIZE> GP_DEV void copy_by(u64 dst, u64 src, u64 bytes, u64 thread, u64 stride) {
	u64 head = (0 - dst) & (SIZE - 1);
	if (head > bytes)
		head = bytes;
	const u64 n = (bytes - head) / SIZE;
	const u64 rest = bytes - n * SIZE;
	for (u64 i = thread; i < rest; i += stride) {
		const u64 at = i < head ? i : i + n * SIZE;
		V1 v;
		load(&v, src + at);
		store(dst + at, v);
	}
	vectors<V, SIZE>(dst + head, src + head, n, thread, stride);
}

// The bound is kernel.BlockThreads.
extern "C" __global__ void __launch_bounds__(512) gp_copy(u64 dst, u64 src, u64 bytes) {
	const u64 stride = (u64)gridDim.x * blockDim.x;
	const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
	const u32 off = (u32)(dst ^ src);
	if ((off & 15) == 0)
		copy_by<V16, 16>(dst, src, bytes, thread, stride);
	else if ((off & 7) == 0)
		copy_by<V8, 8>(dst, src, bytes, thread, stride);
	else if ((off & 3) == 0)
		copy_by<V4, 4>(dst, src, bytes, thread, stride);
	else if ((off & 1) == 0)
		copy_by<V2, 2>(dst, src, bytes, thread, stride);
	else
		vectors<V1, 1>(dst, src, bytes, thread, stride);
}
