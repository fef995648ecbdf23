// SPDX-License-Identifier: Apache-2.0

// gp_gather: all_gather of bytes by LL words; internal/kernel's Gather. It is
// made with the element type of a byte.

extern "C" __global__ void __launch_bounds__(512) gp_gather(Exchange x) {
	const u32 n = (u32)x.n, rank = (u32)x.rank, epoch = (u32)x.epoch, units = (u32)x.shard;
	const u32 whole = (u32)(x.count / PER);
	const u32 in_fast = x.in & 7 ? 0 : whole, out_fast = (x.out | x.count) & 7 ? 0 : whole;
	const u32 stride = gridDim.x * blockDim.x;
	const u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
	// Of the first SLOTS threads of a block, which read the hints, all go along.
	const u32 rounded = (units + SLOTS - 1) / SLOTS * SLOTS;
	const u64 words = words_at(x, epoch);
	const u64 own = x.area[rank] + words;

#pragma unroll 1
	for (u32 u = thread; u < units; u += stride) {
		const u64 v = u < in_fast ? load8(x.in + 8 * (u64)u) : load_parts(x.in, u, x.count);
		send(own + 16 * (u64)u, v, epoch);
		const u64 to = x.out + rank * x.count;
		if (u < out_fast)
			store8(to + 8 * (u64)u, v);
		else
			store_parts(to, u, x.count, v);
	}

	const bool eager = few(units, n);
	if (threadIdx.x == 0)
		begin_waiting(eager);
	__syncthreads();
	// From here on no threads meet: one that gives up leaves.
#pragma unroll 1
	for (u32 j0 = 0; j0 < n - 1; j0 += SLOTS)
#pragma unroll 1
		for (u32 u = thread; u < rounded; u += stride) {
			const u32 first = wrapped(rank + 1 + j0, n), left = n - 1 - j0;
			u64 d[SLOTS], poll = 0;
			if (!eager && u == thread && threadIdx.x < SLOTS && threadIdx.x < left)
				poll = hint(x, wrapped(first + threadIdx.x, n), words, 0, units, units);
			const u32 want = u < units ? (left < SLOTS ? (1u << left) - 1 : (1u << SLOTS) - 1) : 0;
			if (!receive(x, d, want, first, words + 16 * (u64)u, 0, j0 / SLOTS, poll, epoch))
				return;
#pragma unroll 1
			for (int j = 0; want >> j & 1; j++) {
				const u64 to = x.out + wrapped(first + j, n) * x.count;
				if (u < out_fast)
					store8(to + 8 * (u64)u, d[0]);
				else
					store_parts(to, u, x.count, d[0]);
#pragma unroll
				for (int k = 1; k < SLOTS; k++)
					d[k - 1] = d[k];
			}
		}
}
