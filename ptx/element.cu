// SPDX-License-Identifier: Apache-2.0

// The element types, one of which -DGP_TYPE_<tag> chooses, and the reductions.
// The 16-bit floats are plain bits here, and are converted by PTX that is as old
// as the embedded modules (PTX 7.0, sm_80).

enum { SUM, PROD, MIN, MAX, AVG };

// The element type: `bits` holds an element as it lies in memory, `wide` is
// what it is accumulated in.

#if defined(GP_TYPE_f64)

#define GP_FLOAT 1
#define GP_TAG f64
#define ESIZE 8
#define WSIZE 8
typedef u64 bits;
typedef double wide;
GP_DEV wide widen(bits b) { return double_of(b); }
GP_DEV bits narrow(wide v) { return bits_of(v); }

#elif defined(GP_TYPE_f32)

#define GP_FLOAT 1
#define GP_TAG f32
#define ESIZE 4
#define WSIZE 4
typedef u32 bits;
typedef float wide;
GP_DEV wide widen(bits b) { return float_of(b); }
GP_DEV bits narrow(wide v) { return bits_of(v); }

#elif defined(GP_TYPE_f16)

#define GP_FLOAT 1
#define GP_TAG f16
#define ESIZE 2
#define WSIZE 4
typedef u32 bits;
typedef float wide;
GP_DEV wide widen(bits b) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"((unsigned short)b)); return r; }
GP_DEV bits narrow(wide v) { unsigned short r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v)); return r; }

#elif defined(GP_TYPE_bf16)

#define GP_FLOAT 1
#define GP_TAG bf16
#define ESIZE 2
#define WSIZE 4
typedef u32 bits;
typedef float wide;
GP_DEV wide widen(bits b) { return float_of(b << 16); }
// Not rounded by hand: a carry out of the mantissa would turn some NaNs into numbers.
GP_DEV bits narrow(wide v) { unsigned short r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v)); return r; }

#elif defined(GP_TYPE_i8)

#define GP_TAG i8
#define ESIZE 1
#define WSIZE 8
typedef u32 bits;
typedef s64 wide;
GP_DEV wide widen(bits b) { return (s64)(signed char)b; }
GP_DEV bits narrow(wide v) { return (u32)v & 0xff; }

#elif defined(GP_TYPE_u8)

#define GP_UNSIGNED 1
#define GP_TAG u8
#define ESIZE 1
#define WSIZE 8
typedef u32 bits;
typedef u64 wide;
GP_DEV wide widen(bits b) { return b; }
GP_DEV bits narrow(wide v) { return (u32)v & 0xff; }

#elif defined(GP_TYPE_i32)

#define GP_TAG i32
#define ESIZE 4
#define WSIZE 8
typedef u32 bits;
typedef s64 wide;
GP_DEV wide widen(bits b) { return (s64)(int)b; }
GP_DEV bits narrow(wide v) { return (u32)v; }

#elif defined(GP_TYPE_u32)

#define GP_UNSIGNED 1
#define GP_TAG u32
#define ESIZE 4
#define WSIZE 8
typedef u32 bits;
typedef u64 wide;
GP_DEV wide widen(bits b) { return b; }
GP_DEV bits narrow(wide v) { return (u32)v; }

#elif defined(GP_TYPE_i64)

#define GP_TAG i64
#define ESIZE 8
#define WSIZE 8
typedef u64 bits;
typedef s64 wide;
GP_DEV wide widen(bits b) { return (s64)b; }
GP_DEV bits narrow(wide v) { return (u64)v; }

#elif defined(GP_TYPE_u64)

#define GP_UNSIGNED 1
#define GP_TAG u64
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

// A name with the type's tag in it, once GP_TAG is what it stands for.
#define GP_PASTE(a, b) a##b
#define GP_JOIN(a, b) GP_PASTE(a, b)
