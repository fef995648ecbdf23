// SPDX-License-Identifier: Apache-2.0

// gp_handshake: every rank posts its flag and waits for all others';
// internal/kernel's Handshake. One block, of which one warp works.

extern "C" __global__ void __launch_bounds__(512) gp_handshake(Exchange x) {
	const u32 n = (u32)x.n, rank = (u32)x.rank, epoch = (u32)x.epoch, lane = threadIdx.x;
	const u64 flag = flags_at(x, epoch);
	if (lane >= 32 || blockIdx.x > 0)
		return;
	if (lane == 0)
		post_flag(x.area[rank] + flag, join(1, epoch));
	Wait wait = patience(x);
	const bool failed = lane < n && lane != rank && !await_flag(x.area[lane] + flag, epoch, 1, &wait, lane);
	const u32 any = or_of_warp(failed ? 1 : 0);
	if (lane == 0 && any == 0)
		say(x.control, STATUS_DONE, 0, epoch);
}
