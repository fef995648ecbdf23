// SPDX-License-Identifier: Apache-2.0

// The units of eight bytes in which elements travel: unit u is the PER elements
// from u*PER on, the last one may hold fewer.
#define PER (8 / ESIZE)

// The elements of a unit that there are.
GP_DEV u32 parts(u64 unit, u64 count) {
	const u64 e = unit * PER;
	return e >= count ? 0 : count - e < PER ? (u32)(count - e) : PER;
}

// A unit at any alignment, in pieces of four bytes where they are aligned and
// else element by element. Elements beyond the count are zeros.
GP_DEV u64 load_parts(u64 base, u64 unit, u64 count) {
	const u32 n = parts(unit, count);
	const u64 a = base + 8 * unit;
#if ESIZE < 4
	if (n == PER && (base & 3) == 0)
		return join(load4(a), load4(a + 4));
#endif
	u64 v = 0;
#pragma unroll 1
	for (u32 i = 0; i < n; i++)
		v |= (u64)load1(a + i * ESIZE) << (8 * ESIZE * i);
	return v;
}

GP_DEV void store_parts(u64 base, u64 unit, u64 count, u64 v) {
	const u32 n = parts(unit, count);
	const u64 a = base + 8 * unit;
#if ESIZE < 4
	if (n == PER && (base & 3) == 0) {
		u32 lo, hi;
		split(v, &lo, &hi);
		store4(a, lo);
		store4(a + 4, hi);
		return;
	}
#endif
#pragma unroll 1
	for (u32 i = 0; i < n; i++)
		store1(a + i * ESIZE, (bits)(v >> (8 * ESIZE * i)));
}

// Folds unit j of each rank j < n, in rank order.
template <int OP> GP_DEV u64 fold_ranks(u64 *d, u32 n, u64 divisor) {
	u64 out = 0;
#pragma unroll 1
	for (int i = 0; i < PER; i++) {
		wide acc = identity<OP>();
#pragma unroll
		for (int j = 0; j < 16; j++)
			if ((u32)j < n)
				acc = fold<OP>(acc, widen((bits)(d[j] & (~0ull >> (64 - 8 * ESIZE)))));
		if (OP == SUM && divisor != 0)
			acc = divide(acc, divisor);
#if PER > 1
		out = out >> (8 * ESIZE) | (u64)narrow(acc) << (64 - 8 * ESIZE);
#pragma unroll
		for (int j = 0; j < 16; j++)
			d[j] >>= 8 * ESIZE;
#else
		out = narrow(acc);
#endif
	}
	return out;
}

GP_DEV u64 fold_unit(const Exchange &x, u64 *d) {
	const u32 n = (u32)x.n;
	switch ((u32)x.mode >> 8 & 0xff) {
	case PROD:
		return fold_ranks<PROD>(d, n, 0);
	case MIN:
		return fold_ranks<MIN>(d, n, 0);
	case MAX:
		return fold_ranks<MAX>(d, n, 0);
	case AVG:
		return fold_ranks<SUM>(d, n, x.divisor);
	}
	return fold_ranks<SUM>(d, n, 0);
}
