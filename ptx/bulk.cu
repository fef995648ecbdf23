// SPDX-License-Identifier: Apache-2.0

// gp_bulk_<type>: all_reduce in two shots, in bulk; internal/kernel's TwoShot.
//
// Sixteen bytes of the message lie at their place in every area: a rank writes
// the others' shards there, folds its own, and writes the result to the places
// that it has left out.
//
// A block of every rank works on the same part of every shard, and waits for
// those blocks alone. It goes round by round, each thread with sixteen bytes of
// each shard, and in step t writes what round t folds, folds round t-1, and
// reads the results of round t-2: so both directions of the link are busy, and a
// step has one flag that says so much is written.

#define SIXTEEN(u) (16 * (u64)(u))

// Where a message is whole and aligned, and where not.
struct Message {
	u64 base, count;
	u32 fast; // units of sixteen bytes below this are whole and aligned
};

GP_DEV Message message(u64 base, u64 count) {
	Message m = {base, count, base & 15 ? 0 : (u32)(count / (2 * PER))};
	return m;
}

extern "C" __global__ void __launch_bounds__(512) GP_JOIN(gp_bulk_, GP_TAG)(Exchange x) {
	const u32 n = (u32)x.n, rank = (u32)x.rank, epoch = (u32)x.epoch, shard = (u32)x.shard;
	const u32 units = (u32)((x.count + 2 * PER - 1) / (2 * PER));
	const Message in = message(x.in, x.count), out = message(x.out, x.count);
	const u32 stride = gridDim.x * blockDim.x;
	const u32 block = blockIdx.x * blockDim.x;
	const u64 flag = flags_at(x, epoch) + FLAG_STRIDE * blockIdx.x;
	const u64 bulk = bulk_at(x, epoch);
	const u64 own = x.area[rank] + bulk;
	if (block >= shard)
		return;
	if (threadIdx.x == 0)
		begin_waiting(true);

#pragma unroll 1
	for (u32 t = 0;; t++) {
		const u32 i = block + threadIdx.x + t * stride;
		// The others' shards of round t, from the next rank's on.
		if (i < shard) {
#pragma unroll 1
			for (u32 j0 = 0; j0 < n - 1; j0 += SLOTS) {
				u64 lo[SLOTS], hi[SLOTS];
				u32 unit[SLOTS];
#pragma unroll
				for (int j = 0; j < SLOTS; j++) {
					unit[j] = wrapped(rank + 1 + j0 + j, n) * shard + i;
					if (j0 + j < n - 1 && unit[j] < in.fast)
						load_pair(&lo[j], &hi[j], in.base + SIXTEEN(unit[j]));
				}
#pragma unroll
				for (int j = 0; j < SLOTS; j++)
					if (j0 + j < n - 1 && unit[j] < in.fast)
						store_pair(own + SIXTEEN(unit[j]), lo[j], hi[j]);
			}
			if (in.fast < units) {
#pragma unroll 1
				for (u32 j = 0; j < n - 1; j++) {
					const u32 u = wrapped(rank + 1 + j, n) * shard + i;
					if (u >= in.fast && u < units)
						store_pair(own + SIXTEEN(u), load_parts(in.base, 2 * (u64)u, in.count), load_parts(in.base, 2 * (u64)u + 1, in.count));
				}
			}
		}

		if (t > 0) {
			if (threadIdx.x < n && threadIdx.x != rank)
				await_flag(x, x.area[threadIdx.x] + flag, epoch, t, threadIdx.x);
			__syncthreads();
			// Nobody sets it again before the barrier below.
			if (gp_ended != 0)
				return;
		}
		// The first step in which nothing is left to fold is the last.
		const bool last = t > 0 && block + (t - 1) * stride >= shard;

		// The own shard of round t-1.
		const u32 u = rank * shard + i - stride;
		if (t > 0 && i - stride < shard && u < units) {
			u64 lo[16], hi[16];
			const u64 self = u < in.fast ? in.base + SIXTEEN(u) : own + SIXTEEN(u);
#pragma unroll
			for (int j = 0; j < 16; j++) {
				lo[j] = hi[j] = 0;
				if (j < n)
					load_pair(&lo[j], &hi[j], j == rank ? self : x.area[j] + bulk + SIXTEEN(u));
			}
			if (u >= in.fast) {
				const u64 mine_lo = load_parts(in.base, 2 * (u64)u, in.count), mine_hi = load_parts(in.base, 2 * (u64)u + 1, in.count);
#pragma unroll
				for (int j = 0; j < 16; j++)
					if (j == rank) {
						lo[j] = mine_lo;
						hi[j] = mine_hi;
					}
			}
			u64 r[2] = {0, 0};
#pragma unroll 1
			for (int h = 0; h < 2; h++) {
				r[0] = r[1];
				r[1] = fold_unit(x, lo);
#pragma unroll
				for (int j = 0; j < 16; j++)
					lo[j] = hi[j];
			}
			store_pair(own + SIXTEEN(u), r[0], r[1]);
			if (u < out.fast)
				store_pair(out.base + SIXTEEN(u), r[0], r[1]);
			else {
				store_parts(out.base, 2 * (u64)u, out.count, r[0]);
				store_parts(out.base, 2 * (u64)u + 1, out.count, r[1]);
			}
		}

		if (!last) {
			__syncthreads();
			// Not of the warp that waits.
			if (threadIdx.x == blockDim.x - 1)
				post_flag(x.area[rank] + flag, join(t + 1, epoch));
		}

		// The others' results of round t-2.
		if (t > 1 && i - 2 * stride < shard) {
#pragma unroll 1
			for (u32 j0 = 0; j0 < n - 1; j0 += SLOTS) {
				u64 lo[SLOTS], hi[SLOTS];
				u32 unit[SLOTS];
#pragma unroll
				for (int j = 0; j < SLOTS; j++) {
					const u32 peer = wrapped(rank + 1 + j0 + j, n);
					unit[j] = peer * shard + i - 2 * stride;
					if (j0 + j < n - 1 && unit[j] < units)
						load_pair(&lo[j], &hi[j], x.area[peer] + bulk + SIXTEEN(unit[j]));
				}
#pragma unroll
				for (int j = 0; j < SLOTS; j++)
					if (j0 + j < n - 1 && unit[j] < out.fast)
						store_pair(out.base + SIXTEEN(unit[j]), lo[j], hi[j]);
				if (out.fast < units) {
#pragma unroll 1
					for (int j = 0; j < SLOTS && j0 + j < n - 1; j++) {
						if (unit[0] >= out.fast && unit[0] < units) {
							store_parts(out.base, 2 * (u64)unit[0], out.count, lo[0]);
							store_parts(out.base, 2 * (u64)unit[0] + 1, out.count, hi[0]);
						}
#pragma unroll
						for (int k = 1; k < SLOTS; k++) {
							unit[k - 1] = unit[k];
							lo[k - 1] = lo[k];
							hi[k - 1] = hi[k];
						}
					}
				}
			}
		}
		if (last)
			return;
	}
}
