// SPDX-License-Identifier: Apache-2.0

// What kernels that wait for each other share: their parameters, areas, words
// and flags. The contract is internal/kernel's Exchange.
//
// What crosses between GPUs, or to the CPU, goes by mapped host memory in one of
// two ways. LL words are 64 bits, four bytes of data and the epoch above them,
// written and read at once (st.relaxed.sys, ld.relaxed.sys): who sees the epoch
// has the data. Two make an access of 16 bytes, of which PCIe keeps each half
// whole. In bulk, plain stores of a block are followed by a barrier and one
// thread's st.release.sys of the block's flag; a thread of the reader's block
// sees it by ld.acquire.sys, and after a barrier there all of them load.

struct Exchange {
	u64 in, out, count, divisor, rank, n, epoch, deadline, control, area_bytes, mode, shard;
	u64 area[16];
};

enum { ONE_SHOT = 1, TWO_SHOT_LL, TWO_SHOT, GATHER, HANDSHAKE, ECHO_WORDS, ECHO_BULK };
enum { STATUS_DONE = 1, STATUS_ABORTED, STATUS_TIMED_OUT };

#define ABORT_WORD 0
#define STATUS_WORD 64
#define LOOK_NS 10000
#define FLAG_STRIDE 64
#define FLAG_BYTES 2048

GP_DEV u32 kind_of(const Exchange &x) { return (u32)x.mode & 0xff; }

// Where the sections that serve an epoch lie in any area.
GP_DEV u64 flags_at(const Exchange &x, u32 epoch) { return epoch & 1 ? x.area_bytes >> 1 : 0; }
GP_DEV u64 words_at(const Exchange &x, u32 epoch) { return flags_at(x, epoch) + FLAG_BYTES; }
GP_DEV u64 bulk_at(const Exchange &x, u32 epoch) {
	return words_at(x, epoch) + ((((x.area_bytes >> 1) - FLAG_BYTES) >> 2) & ~255ull);
}

// Sixteen bytes of payload.
GP_DEV void load_pair(u64 *lo, u64 *hi, u64 a) {
	asm volatile("ld.global.v2.u64 {%0, %1}, [%2];" : "=l"(*lo), "=l"(*hi) : "l"(a) : "memory");
}
GP_DEV void store_pair(u64 a, u64 lo, u64 hi) {
	asm volatile("st.global.v2.u64 [%0], {%1, %2};" : : "l"(a), "l"(lo), "l"(hi) : "memory");
}

// Two LL words.
GP_DEV void load_words(u64 *w, u64 a) {
	asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(w[0]), "=l"(w[1]) : "l"(a) : "memory");
}
GP_DEV void send(u64 a, u64 data, u32 epoch) {
	u32 lo, hi;
	split(data, &lo, &hi);
	const u64 w0 = join(lo, epoch), w1 = join(hi, epoch);
	asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" : : "l"(a), "l"(w0), "l"(w1) : "memory");
}
// The data of two words, and whether both are of the epoch.
GP_DEV bool arrived(const u64 *w, u32 epoch, u64 *data) {
	u32 d0, f0, d1, f1;
	split(w[0], &d0, &f0);
	split(w[1], &d1, &f1);
	*data = join(d0, d1);
	return f0 == epoch && f1 == epoch;
}

// Flags: the epoch above a count of rounds.
GP_DEV void post_flag(u64 a, u64 v) { asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(a), "l"(v) : "memory"); }
GP_DEV u64 see_flag(u64 a) {
	u64 v;
	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(a) : "memory");
	return v;
}

GP_DEV u64 clock_ns() { u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }

// All 32 threads of a warp take part, here and in receive.
GP_DEV u32 or_of_warp(u32 v) {
	u32 r;
	asm volatile("redux.sync.or.b32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(v) : "memory");
	return r;
}

GP_DEV void say(u64 control, u32 code, u32 peer, u32 epoch) {
	const u64 w = join(code | peer << 8, epoch);
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(control + STATUS_WORD), "l"(w) : "memory");
}

// A thread's waiting, which begins when it first finds nothing.
struct Wait {
	u64 control, deadline, since, looked;
	u32 epoch;
};

GP_DEV Wait patience(const Exchange &x) {
	Wait w = {x.control, x.deadline, 0, 0, (u32)x.epoch};
	return w;
}

// Has the thread waited enough? If so it has said why, and for whom.
GP_DEV bool enough(Wait *w, u32 peer) {
	const u64 now = clock_ns();
	if (w->since == 0)
		w->since = w->looked = now;
	if (now - w->looked < LOOK_NS)
		return false;
	w->looked = now;
	u32 abort;
	asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(abort) : "l"(w->control + ABORT_WORD) : "memory");
	const u32 code = abort != 0 ? STATUS_ABORTED : now - w->since >= w->deadline ? STATUS_TIMED_OUT : 0;
	if (code == 0)
		return false;
	say(w->control, code, peer, w->epoch);
	return true;
}

// Waits until a peer's flag has come to a round of the epoch.
GP_DEV bool await_flag(u64 a, u32 epoch, u32 round, Wait *w, u32 peer) {
#pragma unroll 1
	for (;;) {
		const u64 v = see_flag(a);
		if ((u32)(v >> 32) == epoch && (u32)v >= round)
			return true;
		if (enough(w, peer))
			return false;
	}
}

// A rank's number, of what is at most once around too high.
GP_DEV u32 wrapped(u32 r, u32 n) { return r >= n ? r - n : r; }

// The peers whose words are waited for together: loads in flight together share
// the latency of the link.
#define SLOTS 8

// Is it little that all ranks read, of so many units of each other?
GP_DEV bool few(u32 units, u32 n) { return units * n * n <= 1024; }

// Waits for the two words at at[j] for each j that this thread's want has, and
// puts their data into d[j]. Slot j is of the rank first + j, wrapped. False if
// the warp has to end.
//
// What is not there at first is waited for by the first thread alone, at the
// first slot that any thread of the warp still wants and of which the first
// thread has a word too: to have all read what has not come would fill the link
// that it has to come by. Where that is little (see few) all read all again,
// which saves the way of one more read.
GP_DEV bool receive(u64 *d, const u64 *at, u32 want, bool eager, u32 epoch, Wait *wait, u32 first, u32 n) {
	u64 w[SLOTS][2];
#pragma unroll
	for (int j = 0; j < SLOTS; j++)
		w[j][0] = w[j][1] = d[j] = 0;
	u32 end = 0;
#pragma unroll 1
	for (;;) {
#pragma unroll
		for (int j = 0; j < SLOTS; j++)
			if (want >> j & 1)
				load_words(w[j], at[j]);
#pragma unroll
		for (int j = 0; j < SLOTS; j++)
			if ((want >> j & 1) && arrived(w[j], epoch, &d[j]))
				want &= ~(1u << j);
		const u32 any = or_of_warp(want | end);
		if (any == 0)
			break;
		if (any >> 31)
			return false;
		if ((threadIdx.x & 31) == 0) {
			u64 a = 0;
			u32 slot = 0;
#pragma unroll
			for (int j = SLOTS - 1; j >= 0; j--)
				if (any >> j & 1) {
					a = at[j];
					slot = j;
				}
			u64 v[2], data;
#pragma unroll 1
			do {
				if (enough(wait, wrapped(first + slot, n))) {
					end = 1u << 31;
					break;
				}
				if (eager)
					break;
				load_words(v, a);
			} while (!arrived(v, epoch, &data));
		}
	}
	return true;
}
