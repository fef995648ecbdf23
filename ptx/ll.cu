// SPDX-License-Identifier: Apache-2.0

// gp_ll_<type>: all_reduce by LL words, in one shot or in two; internal/kernel's
// OneShot and TwoShotLL.
//
// The word of a unit lies at the unit's place in every area. In one shot a rank
// writes all of them and folds all. In two it writes those of the others' shards,
// folds its own, and writes the result to the places that it has left out.

extern "C" __global__ void __launch_bounds__(512) GP_JOIN(gp_ll_, GP_TAG)(Exchange x) {
	const u32 n = (u32)x.n, rank = (u32)x.rank, epoch = (u32)x.epoch, shard = (u32)x.shard;
	const bool two = kind_of(x) == TWO_SHOT_LL;
	const u32 units = (u32)((x.count + PER - 1) / PER);
	// Units below these are whole and aligned.
	const u32 whole = (u32)(x.count / PER);
	const u32 in_fast = x.in & 7 ? 0 : whole, out_fast = x.out & 7 ? 0 : whole;
	const u32 stride = gridDim.x * blockDim.x;
	const u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
	// Of the first SLOTS threads of a block, which read the hints, all go along.
	const u32 rounded = (shard + SLOTS - 1) / SLOTS * SLOTS;
	const u64 words = words_at(x, epoch);
	const u64 own = x.area[rank] + words;

	// What the others wait for, from the next rank on, so that not all read from
	// one at once.
	const u32 shards = two ? n - 1 : 1;
#pragma unroll 1
	for (u32 j0 = 0; j0 < shards; j0 += SLOTS)
#pragma unroll 1
		for (u32 i = thread; i < shard; i += stride) {
			u64 d[SLOTS];
			u32 unit[SLOTS];
#pragma unroll
			for (int j = 0; j < SLOTS; j++) {
				unit[j] = (two ? wrapped(rank + 1 + j0 + j, n) * shard : 0) + i;
				if (j0 + j < shards && unit[j] < in_fast)
					d[j] = load8(x.in + 8 * (u64)unit[j]);
			}
#pragma unroll
			for (int j = 0; j < SLOTS; j++)
				if (j0 + j < shards && unit[j] < in_fast)
					send(own + 16 * (u64)unit[j], d[j], epoch);
		}
	if (in_fast < units) {
#pragma unroll 1
		for (u32 j = 0; j < shards; j++)
#pragma unroll 1
			for (u32 i = thread; i < shard; i += stride) {
				const u32 u = (two ? wrapped(rank + 1 + j, n) * shard : 0) + i;
				if (u >= in_fast && u < units)
					send(own + 16 * (u64)u, load_parts(x.in, u, x.count), epoch);
			}
	}

	const bool eager = few(shard, n);
	if (threadIdx.x == 0)
		begin_waiting(eager);
	__syncthreads();
	// From here on no threads meet: one that gives up leaves.

	// The fold.
	const u32 lo = two ? rank * shard : 0;
#pragma unroll 1
	for (u32 i = thread; i < rounded; i += stride) {
		const u32 u = lo + i;
		const bool have = i < shard && u < units;
		u64 d[16], mine = 0;
		if (have)
			mine = u < in_fast ? load8(x.in + 8 * (u64)u) : load_parts(x.in, u, x.count);
#pragma unroll 1
		for (u32 j0 = 0; j0 < n; j0 += SLOTS) {
			u64 some[SLOTS], poll = 0;
			const u32 peer = j0 + threadIdx.x;
			if (!eager && i == thread && threadIdx.x < SLOTS && peer < n && peer != rank)
				poll = hint(x, peer, words, lo, shard, units);
			const u32 left = n - j0;
			u32 want = have ? (left < SLOTS ? (1u << left) - 1 : (1u << SLOTS) - 1) : 0;
			if (rank - j0 < SLOTS)
				want &= ~(1u << (rank - j0));
			if (!receive(x, some, want, j0, words + 16 * (u64)u, 0, j0 / SLOTS, poll, epoch))
				return;
#pragma unroll
			for (int j = 0; j < SLOTS; j++) {
				d[SLOTS + j] = some[j];
				if (j0 == 0)
					d[j] = some[j];
			}
		}
		if (!have)
			continue;
#pragma unroll
		for (int j = 0; j < 16; j++)
			if (j == rank)
				d[j] = mine;
		const u64 r = fold_unit(x, d);
		if (two)
			send(own + 16 * (u64)u, r, epoch);
		if (u < out_fast)
			store8(x.out + 8 * (u64)u, r);
		else
			store_parts(x.out, u, x.count, r);
	}
	if (!two)
		return;

	// The others' results.
#pragma unroll 1
	for (u32 j0 = 0; j0 < n - 1; j0 += SLOTS)
#pragma unroll 1
		for (u32 i = thread; i < rounded; i += stride) {
			const u32 first = wrapped(rank + 1 + j0, n);
			u64 d[SLOTS], poll = 0;
			u32 unit[SLOTS], want = 0;
			if (!eager && i == thread && threadIdx.x < SLOTS && j0 + threadIdx.x < n - 1) {
				const u32 peer = wrapped(first + threadIdx.x, n);
				poll = hint(x, peer, words, peer * shard, shard, units);
			}
#pragma unroll
			for (int j = 0; j < SLOTS; j++) {
				unit[j] = wrapped(first + j, n) * shard + i;
				if (j0 + j < n - 1 && i < shard && unit[j] < units)
					want |= 1u << j;
			}
			if (!receive(x, d, want, first, words + 16 * (u64)i, 16 * (u64)shard, 2 + j0 / SLOTS, poll, epoch))
				return;
#pragma unroll
			for (int j = 0; j < SLOTS; j++)
				if ((want >> j & 1) && unit[j] < out_fast)
					store8(x.out + 8 * (u64)unit[j], d[j]);
			if (out_fast < units) {
#pragma unroll 1
				for (int j = 0; j < SLOTS; j++) {
					if ((want >> j & 1) && unit[0] >= out_fast)
						store_parts(x.out, unit[0], x.count, d[0]);
#pragma unroll
					for (int k = 1; k < SLOTS; k++) {
						unit[k - 1] = unit[k];
						d[k - 1] = d[k];
					}
				}
			}
		}
}
