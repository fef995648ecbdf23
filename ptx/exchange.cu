// SPDX-License-Identifier: Apache-2.0

// What kernels that wait for each other share: their parameters, areas, words
// and flags. The contract is internal/kernel's Exchange.
//
// What crosses between GPUs, or to the CPU, goes by mapped host memory in one of
// two ways. LL words are 64 bits, four bytes of data and the epoch above them,
// written and read at once (volatile, hence relaxed and of system scope): who sees
// the epoch has the data. Two make an access of 16 bytes, of which PCIe keeps each half
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
#define LOOK_TICKS 16384 // of the multiprocessor's clock: 8 to 16 us
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

// Two LL words. Volatile is relaxed.sys that no compiler joins or moves out of a
// loop.
GP_DEV void load_words(u64 *w0, u64 *w1, u64 a) {
	asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(*w0), "=l"(*w1) : "l"(a) : "memory");
}
GP_DEV void send(u64 a, u64 data, u32 epoch) {
	u32 lo, hi;
	split(data, &lo, &hi);
	const u64 w0 = join(lo, epoch), w1 = join(hi, epoch);
	asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" : : "l"(a), "l"(w0), "l"(w1) : "memory");
}
GP_DEV u32 data_of(u64 w) { u32 d, f; split(w, &d, &f); return d; }
GP_DEV u32 epoch_of(u64 w) { u32 d, f; split(w, &d, &f); return f; }

// Flags: the epoch above a count of rounds.
GP_DEV void post_flag(u64 a, u64 v) { asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(a), "l"(v) : "memory"); }
GP_DEV u64 see_flag(u64 a) {
	u64 v;
	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(a) : "memory");
	return v;
}

GP_DEV u64 clock_ns() { u64 t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t) : : "memory"); return t; }
GP_DEV u32 clock_ticks() { u32 t; asm volatile("mov.u32 %0, %%clock;" : "=r"(t) : : "memory"); return t; }

GP_DEV void say(u64 control, u32 code, u32 peer, u32 epoch) {
	const u64 w = join(code | peer << 8, epoch);
	asm volatile("st.volatile.global.u64 [%0], %1;" : : "l"(control + STATUS_WORD), "l"(w) : "memory");
}

// The peers whose words are waited for together: loads in flight together share
// the latency of the link.
#define SLOTS 8

// What the threads of a block tell each other while they wait. They never meet
// for it, neither the block nor a warp: each waits by itself for what it reads,
// and sees here what another has found out.
static __shared__ volatile u32 gp_ended;  // one has given up: so do all
static __shared__ volatile u32 gp_looked; // the tick at which one looked at the time and the abort word
static __shared__ volatile u64 gp_since;  // when the first such look was, 0 before it
static __shared__ volatile u64 gp_seen[4]; // a byte for each slot: words of that peer have come (a hint); one for each part

// One thread's, before a barrier that is before all waiting.
GP_DEV void begin_waiting(bool eager) {
	gp_ended = 0;
	gp_looked = clock_ticks();
	gp_since = 0;
#pragma unroll
	for (int i = 0; i < 4; i++)
		gp_seen[i] = eager ? ~0ull : 0;
}

// Is it time for a thread that waits to look whether it has to end? The global
// timer is far away and serves one reader at a time, and the abort word is beyond
// the link: one thread of a block looks, about every 10 us.
GP_DEV bool due() { return gp_ended != 0 || clock_ticks() - gp_looked >= LOOK_TICKS; }

// The look: has the block waited enough? If so it is said why, and for whom.
GP_DEV bool enough(const Exchange &x, u32 peer) {
	if (gp_ended != 0)
		return true;
	gp_looked = clock_ticks();
	const u64 now = clock_ns(), since = gp_since;
	if (since == 0)
		gp_since = now;
	u32 abort;
	asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(abort) : "l"(x.control + ABORT_WORD) : "memory");
	const u32 code = abort != 0 ? STATUS_ABORTED : since != 0 && now - since >= x.deadline ? STATUS_TIMED_OUT : 0;
	if (code == 0)
		return false;
	say(x.control, code, peer, (u32)x.epoch);
	gp_ended = 1;
	return true;
}

// Waits until a peer's flag has come to a round of the epoch.
GP_DEV bool await_flag(const Exchange &x, u64 a, u32 epoch, u32 round, u32 peer) {
#pragma unroll 1
	for (;;) {
		const u64 v = see_flag(a);
		if ((u32)(v >> 32) == epoch && (u32)v >= round)
			return true;
		if (due() && enough(x, peer))
			return false;
	}
}

// A rank's number, of what is at most once around too high.
GP_DEV u32 wrapped(u32 r, u32 n) { return r >= n ? r - n : r; }

// Is it little that all ranks read, of so many units of each other? Then all read
// all until it is there. Else that would fill the link that it has to come by, and
// one thread reads a hint.
GP_DEV bool few(u32 units, u32 n) { return units * n * (n - 1) <= 4096; }

// Which word of a peer's a block reads until it is there, of those that it wants
// of the units [lo, lo + shard): the last one that its threads want at first. 0
// if it wants none.
GP_DEV u64 hint(const Exchange &x, u32 peer, u64 words, u32 lo, u32 shard, u32 units) {
	const u32 block = blockIdx.x * blockDim.x;
	if (block >= shard || lo + block >= units)
		return 0;
	u32 last = block + blockDim.x;
	last = lo + (last < shard ? last : shard) - 1;
	return x.area[peer] + words + 16 * (u64)(last < units ? last : units - 1);
}

// Waits for the two words of each slot that this thread's want has, and puts
// their data into d. Slot j is of the rank first + j, wrapped, and its words lie
// at off + rank * step in that rank's area. False if the thread has to end.
//
// A slot's words are not read before the block has seen its hint: thread j reads
// that of slot j, at poll. What is read without need takes from what the link
// brings; what has come is read while the rest is waited for.
GP_DEV bool receive(const Exchange &x, u64 *d, u32 want, u32 first, u64 off, u64 step, u32 part, u64 poll, u32 epoch) {
	const u32 n = (u32)x.n;
	u64 more[SLOTS];
#pragma unroll
	for (int j = 0; j < SLOTS; j++)
		d[j] = more[j] = 0;
#pragma unroll 1
	for (;;) {
		const u64 seen = gp_seen[part];
		u32 go = 0;
#pragma unroll
		for (int j = 0; j < SLOTS; j++)
			go |= (u32)(seen >> 8 * j) & want & 1u << j;
		u64 p0 = 0, p1 = 0;
		if (poll != 0)
			load_words(&p0, &p1, poll);
#pragma unroll
		for (int j = 0; j < SLOTS; j++)
			if (go >> j & 1) {
				const u32 peer = wrapped(first + j, n);
				load_words(&d[j], &more[j], x.area[peer] + off + peer * step);
			}
		if (poll != 0 && epoch_of(p0) == epoch && epoch_of(p1) == epoch) {
			((volatile unsigned char *)gp_seen)[8 * part + threadIdx.x] = 0xff;
			poll = 0;
		}
#pragma unroll
		for (int j = 0; j < SLOTS; j++)
			if ((go >> j & 1) && epoch_of(d[j]) == epoch && epoch_of(more[j]) == epoch) {
				d[j] = join(data_of(d[j]), data_of(more[j]));
				want &= ~(1u << j);
			}
		if (want == 0 && poll == 0)
			return true;
		if (due()) {
			u32 slot = threadIdx.x;
#pragma unroll
			for (int j = SLOTS - 1; j >= 0; j--)
				if (want >> j & 1)
					slot = j;
			if (enough(x, wrapped(first + slot, n)))
				return false;
		}
	}
}
