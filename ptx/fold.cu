// SPDX-License-Identifier: Apache-2.0

// gp_fold_<type>_<op>: folds up to sixteen inputs into a destination, element
// by element. The contract, parameters and arithmetic, is internal/kernel's
// Fold. One translation unit holds the five reductions of one type.

struct Inputs { u64 p[16]; };

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
#define GP_KERNEL(op, OP)                                                                                       \
	extern "C" __global__ void __launch_bounds__(512)                                                           \
	GP_JOIN(GP_JOIN(gp_fold_, GP_TAG), _##op)(u64 dst, u64 count, u64 divisor, u64 n, u64 flags, Inputs in) {   \
		fold_all<OP>(dst, count, divisor, n, flags, in);                                                        \
	}

GP_KERNEL(sum, SUM)
GP_KERNEL(prod, PROD)
GP_KERNEL(min, MIN)
GP_KERNEL(max, MAX)
GP_KERNEL(avg, AVG)
