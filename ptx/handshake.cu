// SPDX-License-Identifier: Apache-2.0

// gp_handshake: every rank posts its flag and waits for all others';
// internal/kernel's Handshake. One block.

extern "C" __global__ void __launch_bounds__(512) gp_handshake(Exchange x) {
	const u32 n = (u32)x.n, rank = (u32)x.rank, epoch = (u32)x.epoch, thread = threadIdx.x;
	const u64 flag = flags_at(x, epoch);
	if (blockIdx.x > 0)
		return;
	if (thread == 0) {
		post_flag(x.area[rank] + flag, join(1, epoch));
		begin_waiting(true);
	}
	__syncthreads();
	if (thread < n && thread != rank)
		await_flag(x, x.area[thread] + flag, epoch, 1, thread);
	__syncthreads();
	if (thread == 0 && gp_ended == 0)
		say(x.control, STATUS_DONE, 0, epoch);
}
