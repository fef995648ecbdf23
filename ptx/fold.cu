// SPDX-License-Identifier: Apache-2.0

// gp_fold_<type>_<op>: folds up to sixteen inputs into a destination, element
// by element. The contract, parameters and arithmetic, is internal/kernel's
// Fold. One translation unit holds the five reductions of one type, chosen by
// -DGP_TYPE_<tag>.
//
// No header is included: NVRTC's differ from version to version, and a GPU
// host may have none. The 16-bit floats are therefore plain bits here, and
// are converted by PTX that is as old as the embedded modules (PTX 7.0, sm_80).
//
// Every access to memory is written as ld.global or st.global in inline PTX.
// An input may be host memory that another GPU has just written, so the
// compiler must not be free to pick the non-coherent path (ld.global.nc); and
// the addresses arrive as integers, which it would only read generically.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define GP_DEV static __device__ __forceinline__

enum { SUM, PROD, MIN, MAX, AVG };

struct Inputs { u64 p[16]; };

// Bits and numbers.

GP_DEV u64 join(u32 lo, u32 hi) { u64 r; asm("mov.b64 %0, {%1, %2};" : "=l"(r) : "r"(lo), "r"(hi)); return r; }
GP_DEV void split(u64 v, u32 *lo, u32 *hi) { asm("mov.b64 {%0, %1}, %2;" : "=r"(*lo), "=r"(*hi) : "l"(v)); }
GP_DEV float float_of(u32 b) { float r; asm("mov.b32 %0, %1;" : "=f"(r) : "r"(b)); return r; }
GP_DEV u32 bits_of(float v) { u32 r; asm("mov.b32 %0, %1;" : "=r"(r) : "f"(v)); return r; }
GP_DEV double double_of(u64 b) { double r; asm("mov.b64 %0, %1;" : "=d"(r) : "l"(b)); return r; }
GP_DEV u64 bits_of(double v) { u64 r; asm("mov.b64 %0, %1;" : "=l"(r) : "d"(v)); return r; }

// The element type: `bits` holds an element as it lies in memory, `wide` is
// what it is accumulated in.

#if defined(GP_TYPE_f64)

#define GP_FLOAT 1
#define GP_NAME(op) gp_fold_f64_##op
#define ESIZE 8
#define WSIZE 8
typedef u64 bits;
typedef double wide;
GP_DEV wide widen(bits b) { return double_of(b); }
GP_DEV bits narrow(wide v) { return bits_of(v); }

#elif defined(GP_TYPE_f32)

#define GP_FLOAT 1
#define GP_NAME(op) gp_fold_f32_##op
#define ESIZE 4
#define WSIZE 4
typedef u32 bits;
typedef float wide;
GP_DEV wide widen(bits b) { return float_of(b); }
GP_DEV bits narrow(wide v) { return bits_of(v); }

#elif defined(GP_TYPE_f16)

#define GP_FLOAT 1
#define GP_NAME(op) gp_fold_f16_##op
#define ESIZE 2
#define WSIZE 4
typedef u32 bits;
typedef float wide;
GP_DEV wide widen(bits b) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"((unsigned short)b)); return r; }
GP_DEV bits narrow(wide v) { unsigned short r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v)); return r; }

#elif defined(GP_TYPE_bf16)

#define GP_FLOAT 1
#define GP_NAME(op) gp_fold_bf16_##op
#define ESIZE 2
#define WSIZE 4
typedef u32 bits;
typedef float wide;
GP_DEV wide widen(bits b) { return float_of(b << 16); }
// Not rounded by hand: a carry out of the mantissa would turn some NaNs into numbers.
GP_DEV bits narrow(wide v) { unsigned short r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v)); return r; }

#elif defined(GP_TYPE_i8)

#define GP_NAME(op) gp_fold_i8_##op
#define ESIZE 1
#define WSIZE 8
typedef u32 bits;
typedef s64 wide;
GP_DEV wide widen(bits b) { return (s64)(signed char)b; }
GP_DEV bits narrow(wide v) { return (u32)v & 0xff; }

#elif defined(GP_TYPE_u8)

#define GP_UNSIGNED 1
#define GP_NAME(op) gp_fold_u8_##op
#define ESIZE 1
#define WSIZE 8
typedef u32 bits;
typedef u64 wide;
GP_DEV wide widen(bits b) { return b; }
GP_DEV bits narrow(wide v) { return (u32)v & 0xff; }

#elif defined(GP_TYPE_i32)

#define GP_NAME(op) gp_fold_i32_##op
#define ESIZE 4
#define WSIZE 8
typedef u32 bits;
typedef s64 wide;
GP_DEV wide widen(bits b) { return (s64)(int)b; }
GP_DEV bits narrow(wide v) { return (u32)v; }

#elif defined(GP_TYPE_u32)

#define GP_UNSIGNED 1
#define GP_NAME(op) gp_fold_u32_##op
#define ESIZE 4
#define WSIZE 8
typedef u32 bits;
typedef u64 wide;
GP_DEV wide widen(bits b) { return b; }
GP_DEV bits narrow(wide v) { return (u32)v; }

#elif defined(GP_TYPE_i64)

#define GP_NAME(op) gp_fold_i64_##op
#define ESIZE 8
#define WSIZE 8
typedef u64 bits;
typedef s64 wide;
GP_DEV wide widen(bits b) { return (s64)b; }
GP_DEV bits narrow(wide v) { return (u64)v; }

#elif defined(GP_TYPE_u64)

#define GP_UNSIGNED 1
#define GP_NAME(op) gp_fold_u64_##op
#define ESIZE 8
#define WSIZE 8
typedef u64 bits;
typedef u64 wide;
GP_DEV wide widen(bits b) { return b; }
GP_DEV bits narrow(wide v) { return v; }

#else
#error "one of GP_TYPE_f64 f32 f16 bf16 i8 u8 i32 u32 i64 u64 must be defined"
#endif

// A wide element as it lies in memory: what memory holds at dtype.Wide.
#if WSIZE == 4
GP_DEV wide wide_at(const u32 *w, int i) { return float_of(w[i]); }
GP_DEV void put_wide(u32 *w, int i, wide v) { w[i] = bits_of(v); }
#elif defined(GP_FLOAT)
GP_DEV wide wide_at(const u32 *w, int i) { return double_of(join(w[2 * i], w[2 * i + 1])); }
GP_DEV void put_wide(u32 *w, int i, wide v) { split(bits_of(v), &w[2 * i], &w[2 * i + 1]); }
#else
GP_DEV wide wide_at(const u32 *w, int i) { return (wide)join(w[2 * i], w[2 * i + 1]); }
GP_DEV void put_wide(u32 *w, int i, wide v) { split((u64)v, &w[2 * i], &w[2 * i + 1]); }
#endif

// An element among the 32-bit words of a vector.
#if ESIZE == 8
GP_DEV bits bits_at(const u32 *w, int i) { return join(w[2 * i], w[2 * i + 1]); }
GP_DEV void put_bits(u32 *w, int i, bits b) { split(b, &w[2 * i], &w[2 * i + 1]); }
#elif ESIZE == 4
GP_DEV bits bits_at(const u32 *w, int i) { return w[i]; }
GP_DEV void put_bits(u32 *w, int i, bits b) { w[i] = b; }
#else
#define PER_WORD (4 / ESIZE)
GP_DEV bits bits_at(const u32 *w, int i) {
	return (w[i / PER_WORD] >> (8 * ESIZE * (i % PER_WORD))) & ((1u << (8 * ESIZE)) - 1);
}
GP_DEV void put_bits(u32 *w, int i, bits b) {
	if (i % PER_WORD == 0)
		w[i / PER_WORD] = b;
	else
		w[i / PER_WORD] |= b << (8 * ESIZE * (i % PER_WORD));
}
#endif

// The reductions. Every one has an identity that leaves all values as they are
// (for sum it is -0, since +0 would turn -0 into +0), so that the first input
// needs no case of its own, and min and max of one input canonicalise NaN.
#if defined(GP_FLOAT) && WSIZE == 4

template <int OP> GP_DEV wide identity() {
	return float_of(OP == PROD ? 0x3f800000u : OP == MIN ? 0x7f800000u : OP == MAX ? 0xff800000u : 0x80000000u);
}
template <int OP> GP_DEV wide fold(wide a, wide x) {
	if (OP == MIN) {
		asm("min.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(a), "f"(x));
		return a;
	}
	if (OP == MAX) {
		asm("max.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(a), "f"(x));
		return a;
	}
	return OP == PROD ? a * x : a + x;
}
GP_DEV wide divide(wide a, u64 divisor) { return a / (float)divisor; }

#elif defined(GP_FLOAT)

template <int OP> GP_DEV wide identity() {
	return double_of(OP == PROD  ? 0x3ff0000000000000ull
	                 : OP == MIN ? 0x7ff0000000000000ull
	                 : OP == MAX ? 0xfff0000000000000ull
	                             : 0x8000000000000000ull);
}
// Is a below x, if neither is NaN? Equal doubles have equal bits, but for the
// zeros, and there -0 is the smaller integer.
// (Not by a key that orders all doubles as integers: clang 16 turns the masked
// arithmetic shift in it into a bfe.u64 that loses the sign.)
GP_DEV bool below(double a, double x) { return a < x || (a == x && (s64)bits_of(a) < (s64)bits_of(x)); }
template <int OP> GP_DEV wide fold(wide a, wide x) {
	// There is no min.NaN.f64.
	if (OP == MIN || OP == MAX) {
		double r = below(a, x) == (OP == MIN) ? a : x;
		return (a != a || x != x) ? double_of(0x7ff8000000000000ull) : r;
	}
	return OP == PROD ? a * x : a + x;
}
GP_DEV wide divide(wide a, u64 divisor) { return a / (double)divisor; }

#else

template <int OP> GP_DEV wide identity() {
#if defined(GP_UNSIGNED)
	return OP == PROD ? 1ull : OP == MIN ? 0xffffffffffffffffull : 0ull;
#else
	return OP == PROD ? 1ll : OP == MIN ? 0x7fffffffffffffffll : OP == MAX ? -0x7fffffffffffffffll - 1 : 0ll;
#endif
}
template <int OP> GP_DEV wide fold(wide a, wide x) {
	if (OP == MIN)
		return x < a ? x : a;
	if (OP == MAX)
		return x > a ? x : a;
	// Unsigned arithmetic, because signed overflow is undefined and ours wraps.
	return (wide)(OP == PROD ? (u64)a * (u64)x : (u64)a + (u64)x);
}
GP_DEV wide divide(wide a, u64 divisor) { return a / (wide)divisor; }

#endif

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

#if ESIZE == 8
GP_DEV bits load1(u64 a) { return load8(a); }
GP_DEV void store1(u64 a, bits v) { store8(a, v); }
#elif ESIZE == 4
GP_DEV bits load1(u64 a) { return load4(a); }
GP_DEV void store1(u64 a, bits v) { store4(a, v); }
#elif ESIZE == 2
GP_DEV bits load1(u64 a) { u32 r; asm volatile("ld.global.u16 %0, [%1];" : "=r"(r) : "l"(a)); return r; }
GP_DEV void store1(u64 a, bits v) { asm volatile("st.global.u16 [%0], %1;" : : "l"(a), "r"(v)); }
#else
GP_DEV bits load1(u64 a) { u32 r; asm volatile("ld.global.u8 %0, [%1];" : "=r"(r) : "l"(a)); return r; }
GP_DEV void store1(u64 a, bits v) { asm volatile("st.global.u8 [%0], %1;" : : "l"(a), "r"(v)); }
#endif

#if WSIZE == 4
GP_DEV wide load_wide(u64 a) { return float_of(load4(a)); }
GP_DEV void store_wide(u64 a, wide v) { store4(a, bits_of(v)); }
#elif defined(GP_FLOAT)
GP_DEV wide load_wide(u64 a) { return double_of(load8(a)); }
GP_DEV void store_wide(u64 a, wide v) { store8(a, bits_of(v)); }
#else
GP_DEV wide load_wide(u64 a) { return (wide)load8(a); }
GP_DEV void store_wide(u64 a, wide v) { store8(a, (u64)v); }
#endif

// What a call folds. Inputs are loaded AHEAD at a time before the first of
// them is used: a load from host memory takes microseconds, and loads in
// flight together share that time.
#define AHEAD 4

struct Call {
	u64 dst, count, divisor, inwide;
	bool dstwide;
	int n;
};

template <int OP> GP_DEV wide finish(const Call &c, wide acc) {
	return OP == AVG && c.divisor != 0 ? divide(acc, c.divisor) : acc;
}

// One element, at any alignment.
template <int OP> GP_DEV void fold_one(const Call &c, const Inputs &in, u64 e) {
	wide acc = identity<OP>();
#pragma unroll 1
	for (int k = 0; k < c.n; k += AHEAD) {
		wide x[AHEAD];
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (k + j < c.n)
				x[j] = c.inwide >> (k + j) & 1 ? load_wide(in.p[k + j] + e * WSIZE) : widen(load1(in.p[k + j] + e * ESIZE));
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (k + j < c.n)
				acc = fold<OP>(acc, x[j]);
	}
	acc = finish<OP>(c, acc);
	if (c.dstwide)
		store_wide(c.dst + e * WSIZE, acc);
	else
		store1(c.dst + e * ESIZE, narrow(acc));
}

// VEC elements, sixteen bytes of each input and of the destination.
#define VEC (16 / ESIZE)

template <int OP> GP_DEV void fold_vector(const Call &c, const Inputs &in, u64 e) {
	wide acc[VEC];
#pragma unroll
	for (int i = 0; i < VEC; i++)
		acc[i] = identity<OP>();
#pragma unroll 1
	for (int k = 0; k < c.n; k += AHEAD) {
		u32 w[AHEAD][4];
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (k + j < c.n)
				load16(w[j], in.p[k + j] + e * ESIZE);
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (k + j < c.n) {
#pragma unroll
				for (int i = 0; i < VEC; i++)
					acc[i] = fold<OP>(acc[i], widen(bits_at(w[j], i)));
			}
	}
	u32 out[4];
#pragma unroll
	for (int i = 0; i < VEC; i++)
		put_bits(out, i, narrow(finish<OP>(c, acc[i])));
	store16(c.dst + e * ESIZE, out);
}

#if WSIZE != ESIZE
// MIXED elements where some of the inputs, or the destination, are wide:
// thirty-two bytes of what is wide, four or sixteen of what is not.
#define MIXED (32 / WSIZE)
#define MIXED_AHEAD 2

GP_DEV void load_narrow(u32 *w, u64 a) {
	if (MIXED * ESIZE == 4)
		w[0] = load4(a);
	else
		load16(w, a);
}

template <int OP> GP_DEV void fold_mixed(const Call &c, const Inputs &in, u64 e) {
	wide acc[MIXED];
#pragma unroll
	for (int i = 0; i < MIXED; i++)
		acc[i] = identity<OP>();
#pragma unroll 1
	for (int k = 0; k < c.n; k += MIXED_AHEAD) {
		u32 w[MIXED_AHEAD][8];
#pragma unroll
		for (int j = 0; j < MIXED_AHEAD; j++)
			if (k + j < c.n) {
				if (c.inwide >> (k + j) & 1) {
					load16(w[j], in.p[k + j] + e * WSIZE);
					load16(w[j] + 4, in.p[k + j] + e * WSIZE + 16);
				} else
					load_narrow(w[j], in.p[k + j] + e * ESIZE);
			}
#pragma unroll
		for (int j = 0; j < MIXED_AHEAD; j++)
			if (k + j < c.n) {
				bool w_wide = c.inwide >> (k + j) & 1;
#pragma unroll
				for (int i = 0; i < MIXED; i++)
					acc[i] = fold<OP>(acc[i], w_wide ? wide_at(w[j], i) : widen(bits_at(w[j], i)));
			}
	}
	u32 out[8];
#pragma unroll
	for (int i = 0; i < MIXED; i++)
		acc[i] = finish<OP>(c, acc[i]);
	if (c.dstwide) {
#pragma unroll
		for (int i = 0; i < MIXED; i++)
			put_wide(out, i, acc[i]);
		store16(c.dst + e * WSIZE, out);
		store16(c.dst + e * WSIZE + 16, out + 4);
		return;
	}
#pragma unroll
	for (int i = 0; i < MIXED; i++)
		put_bits(out, i, narrow(acc[i]));
	if (MIXED * ESIZE == 4)
		store4(c.dst + e * ESIZE, out[0]);
	else
		store16(c.dst + e * ESIZE, out);
}
#endif

template <int OP> GP_DEV void fold_all(u64 dst, u64 count, u64 divisor, u64 n, u64 flags, const Inputs &in) {
	Call c = {dst, count, divisor, 0, false, (int)n};
#if WSIZE != ESIZE
	c.inwide = flags & ((1u << c.n) - 1);
	c.dstwide = flags >> 63;
#endif
	const u64 stride = (u64)gridDim.x * blockDim.x;
	const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;

	// The elements before the first at which an address is a multiple of 16. A
	// narrow address decides, where there is one: it has the larger period.
	u64 ref = dst;
	u32 size = c.dstwide ? WSIZE : ESIZE;
#pragma unroll 1
	for (int k = 0; c.dstwide && size == WSIZE && k < c.n; k++)
		if (!(c.inwide >> k & 1)) {
			ref = in.p[k];
			size = ESIZE;
			break;
		}
	u64 head = (u32)((0 - ref) & 15) / size;

	// Do all the other addresses become multiples of 16 there as well?
	u64 off = dst + head * (c.dstwide ? WSIZE : ESIZE);
#pragma unroll 1
	for (int k = 0; k < c.n; k++)
		off |= in.p[k] + head * (c.inwide >> k & 1 ? WSIZE : ESIZE);
	u32 per = VEC;
#if WSIZE != ESIZE
	const bool mixed = c.inwide != 0 || c.dstwide;
	if (mixed)
		per = MIXED;
#endif
	u64 vectors = 0;
	if ((off & 15) == 0 && head < count)
		vectors = (count - head) / per;
	if (vectors == 0)
		head = count;

	// What lies before and behind the vectors.
	const u64 rest = count - vectors * per;
#pragma unroll 1
	for (u64 i = thread; i < rest; i += stride)
		fold_one<OP>(c, in, i < head ? i : i + vectors * per);
#if WSIZE != ESIZE
	if (mixed) {
#pragma unroll 1
		for (u64 v = thread; v < vectors; v += stride)
			fold_mixed<OP>(c, in, head + v * MIXED);
		return;
	}
#endif
#pragma unroll 1
	for (u64 v = thread; v < vectors; v += stride)
		fold_vector<OP>(c, in, head + v * VEC);
}

// The bound is kernel.BlockThreads: without it a kernel may be given more
// registers than a block of that size can have, and its launch fails.
#define GP_KERNEL(op, OP)                                                                             \
	extern "C" __global__ void __launch_bounds__(512)                                                 \
	GP_NAME(op)(u64 dst, u64 count, u64 divisor, u64 n, u64 flags, Inputs in) {                       \
		fold_all<OP>(dst, count, divisor, n, flags, in);                                              \
	}

GP_KERNEL(sum, SUM)
GP_KERNEL(prod, PROD)
GP_KERNEL(min, MIN)
GP_KERNEL(max, MAX)
GP_KERNEL(avg, AVG)
