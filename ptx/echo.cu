// SPDX-License-Identifier: Apache-2.0

// gp_echo: a GPU answers the CPU, batch after batch, by the very loads, stores
// and flags of the kernels that wait for each other; internal/kernel's EchoWords
// and EchoBulk. One card hides a fence that is missing between two kernels, since
// its own L2 serves both: the CPU does not.

extern "C" __global__ void __launch_bounds__(512) gp_echo(Exchange x) {
	const bool bulk = kind_of(x) == ECHO_BULK;
	const u32 units = (u32)(x.count / (bulk ? 16 : 8));
	const u32 stride = gridDim.x * blockDim.x;
	const u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
	if (threadIdx.x == 0)
		begin_waiting(true);
	__syncthreads();

#pragma unroll 1
	for (u64 batch = 0; batch < x.in; batch++) {
		const u32 epoch = (u32)(x.epoch + batch);
		gp_since = 0;
		if (!bulk) {
			const u64 words = words_at(x, epoch);
#pragma unroll 1
			for (u32 u = thread; u < units; u += stride) {
				u64 d[SLOTS];
				if (!receive(x, d, 1, 0, words + 16 * (u64)u, 0, 0, 0, epoch))
					return;
				send(x.area[1] + words + 16 * (u64)u, ~d[0], epoch);
			}
			continue;
		}
		const u64 flag = flags_at(x, epoch) + FLAG_STRIDE * blockIdx.x, at = bulk_at(x, epoch);
		if (threadIdx.x == 0)
			await_flag(x, x.area[0] + flag, epoch, 1, 0);
		__syncthreads();
		if (gp_ended != 0)
			return;
#pragma unroll 1
		for (u32 u = thread; u < units; u += stride) {
			u64 lo, hi;
			load_pair(&lo, &hi, x.area[0] + at + 16 * (u64)u);
			store_pair(x.area[1] + at + 16 * (u64)u, ~lo, ~hi);
		}
		__syncthreads();
		if (threadIdx.x == blockDim.x - 1)
			post_flag(x.area[1] + flag, join(1, epoch));
	}
}
