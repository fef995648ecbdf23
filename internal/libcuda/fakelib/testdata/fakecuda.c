// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for libcuda: the ABI, the current context of each thread, and the
// driver's rules about which handle belongs to which context. Work is done
// inside the call that enqueues it. It is compiled by tests.
//
// Defines:
//   FAKE_DEVICES=n    how many GPUs there are (2)
//   FAKE_CUINIT=code  what cuInit answers (0)
//   FAKE_VERSION=n    what cuDriverGetVersion answers (13000)
//   FAKE_QUIET        no counting, recording or failing: for timing calls
//   cuX=somethingelse a library that lacks cuX
//
// Handles are numbers, not addresses: kind in the upper bits, then an index.

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifndef FAKE_DEVICES
#define FAKE_DEVICES 2
#endif
#ifndef FAKE_CUINIT
#define FAKE_CUINIT 0
#endif
#ifndef FAKE_VERSION
#define FAKE_VERSION 13000
#endif

#define EXPORT __attribute__((visibility("default")))
#define API EXPORT int

typedef uint64_t handle; // CUcontext, CUstream, ...
typedef uint64_t devptr; // CUdeviceptr

enum {
	SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
	INVALID_IMAGE = 200, INVALID_CONTEXT = 201, PEER_UNSUPPORTED = 217, INVALID_PTX = 218, INVALID_HANDLE = 400,
	NOT_FOUND = 500, PEER_ALREADY = 704, PEER_NOT = 705, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713,
	CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_UNMATCHED = 903,
};

// ---- what a test can see and steer ----

#define MAX_NAMES 128

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct counter {
	const char *name; // a literal of this file
	long calls;
	int fail;
	long after; // calls let through before it fails
} counters[MAX_NAMES];

static struct counter *counter_of(const char *name) {
	for (int i = 0; i < MAX_NAMES; i++) {
		if (!counters[i].name) counters[i].name = strdup(name);
		if (!strcmp(counters[i].name, name)) return &counters[i];
	}
	abort();
}

// Each call of the driver's API holds the lock: the state below is shared.
static void unlock(int *unused) { (void)unused; pthread_mutex_unlock(&lock); }

static int inited;

static uint64_t last_arg[12];
static int last_args;

__attribute__((unused)) static int enter(const char *name, int n, const uint64_t *args) {
	struct counter *c = counter_of(name);
	c->calls++;
	last_args = n;
	memcpy(last_arg, args, sizeof(uint64_t) * (size_t)n);
	if (c->fail && c->after-- <= 0) return c->fail;
	return 0;
}

#define NARGS(...) ((int)(sizeof((uint64_t[]){0, ##__VA_ARGS__}) / sizeof(uint64_t)) - 1)
#ifdef FAKE_QUIET
#define RECORD(...) do { uint64_t args_[] = {0, ##__VA_ARGS__}; (void)args_; } while (0)
#else
#define RECORD(...) do { \
		uint64_t args_[] = {0, ##__VA_ARGS__}; \
		int code_ = enter(__func__, NARGS(__VA_ARGS__), args_ + 1); \
		if (code_) return code_; \
	} while (0)
#endif
#define BARE(...) \
	__attribute__((cleanup(unlock))) int locked_ = pthread_mutex_lock(&lock); (void)locked_; \
	RECORD(__VA_ARGS__)
#define ENTER(...) BARE(__VA_ARGS__); if (!inited) return NOT_INITIALIZED

// fake_fail makes a function answer code from its call number after on, counted from
// now; code 0 makes it work again.
EXPORT void fake_fail(const char *name, int code, long after) {
	pthread_mutex_lock(&lock);
	struct counter *c = counter_of(name);
	c->fail = code;
	c->after = after;
	pthread_mutex_unlock(&lock);
}

EXPORT long fake_calls(const char *name) {
	pthread_mutex_lock(&lock);
	long n = counter_of(name)->calls;
	pthread_mutex_unlock(&lock);
	return n;
}

// fake_arg gives argument i of the last call, as the word that arrived.
EXPORT uint64_t fake_arg(int i) { return i < last_args ? last_arg[i] : ~0ull; }

// ---- handles ----

enum kind { CONTEXT = 1, STREAM, EVENT, MODULE, FUNCTION, GRAPH, KINDS };

#define MAX_OBJECTS 65536

struct object {
	int alive;
	int device;         // context
	int refs;           // context
	handle ctx;         // all others
	int capture;        // stream: 0 none, 1 active, 2 invalidated
	int capture_mode;   // stream
	int recorded;       // event
	unsigned flags;
	struct timespec at; // event
	uint32_t peers;     // context: bit a device
	char name[64];      // function
};

static struct object *objects[KINDS]; // [MAX_OBJECTS] each
static int made[KINDS], live[KINDS];

static struct object *get(enum kind k, handle h) {
	uint64_t i = h & 0xffffff;
	if (h >> 24 != (0x5500u | k) || i >= (uint64_t)made[k] || !objects[k][i].alive) return NULL;
	return &objects[k][i];
}

static handle make(enum kind k, struct object **o) {
	if (!objects[k]) objects[k] = calloc(MAX_OBJECTS, sizeof(struct object));
	if (made[k] == MAX_OBJECTS) abort();
	int i = made[k]++;
	live[k]++;
	*o = &objects[k][i];
	(*o)->alive = 1;
	return ((uint64_t)(0x5500u | k) << 24) | (uint64_t)i;
}

static void drop(enum kind k, struct object *o) {
	o->alive = 0;
	live[k]--;
}

// fake_live counts live objects of a kind: context, stream, event, module, graph,
// memory, host.
static int memories, hosts;
EXPORT int fake_live(const char *kind) {
	static const char *names[KINDS] = {"", "context", "stream", "event", "module", "function", "graph"};
	for (int k = 1; k < KINDS; k++)
		if (!strcmp(kind, names[k])) return live[k];
	if (!strcmp(kind, "memory")) return memories;
	if (!strcmp(kind, "host")) return hosts;
	return -1;
}

// ---- contexts ----

static handle primary[FAKE_DEVICES > 0 ? FAKE_DEVICES : 1];

// The context stack of each thread; the top is current.
static __thread handle stack[64];
static __thread int depth;
static __thread int thread_mode; // CU_STREAM_CAPTURE_MODE_GLOBAL

static handle current(void) {
	if (!depth || !get(CONTEXT, stack[depth - 1])) return 0;
	return stack[depth - 1];
}

#define NEED_CONTEXT handle ctx = current(); if (!ctx) return INVALID_CONTEXT
#define NEED_DEVICE(d) if ((d) < 0 || (d) >= FAKE_DEVICES) return INVALID_DEVICE

// Calls that may synchronise are refused while any stream captures in global
// mode, unless the thread is in relaxed mode; the capture is lost then.
static int capture_forbids(void) {
	int hit = 0;
	if (thread_mode == 2) return 0;
	for (int i = 0; i < made[STREAM]; i++) {
		struct object *s = &objects[STREAM][i];
		if (s->alive && s->capture == 1 && s->capture_mode == 0) {
			s->capture = 2;
			hit = 1;
		}
	}
	return hit;
}
#define UNSAFE_IN_CAPTURE if (capture_forbids()) return CAPTURE_UNSUPPORTED

API cuInit(unsigned flags) {
	BARE(flags);
	if (flags) return INVALID_VALUE;
	if (FAKE_CUINIT) return FAKE_CUINIT;
	if (FAKE_DEVICES == 0) return NO_DEVICE;
	inited = 1;
	return SUCCESS;
}

API cuDriverGetVersion(int *v) {
#ifdef FAKE_QUIET
	*v = FAKE_VERSION;
	return SUCCESS;
#else
	BARE((uint64_t)v);
	*v = FAKE_VERSION;
	return SUCCESS;
#endif
}

static const struct { int code; const char *name, *text; } errors[] = {
	{0, "CUDA_SUCCESS", "no error"},
	{1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
};

API cuGetErrorName(int code, const char **s) {
	BARE((uint64_t)code, (uint64_t)s);
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code) { *s = errors[i].name; return SUCCESS; }
	*s = NULL;
	return INVALID_VALUE;
}

API cuGetErrorString(int code, const char **s) {
	BARE((uint64_t)code, (uint64_t)s);
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code) { *s = errors[i].text; return SUCCESS; }
	*s = NULL;
	return INVALID_VALUE;
}

// ---- devices ----

API cuDeviceGetCount(int *n) {
	ENTER((uint64_t)n);
	*n = FAKE_DEVICES;
	return SUCCESS;
}

API cuDeviceGet(int *dev, int ordinal) {
	ENTER((uint64_t)dev, (uint64_t)ordinal);
	NEED_DEVICE(ordinal);
	*dev = ordinal;
	return SUCCESS;
}

API cuDeviceGetName(char *name, int len, int dev) {
	ENTER((uint64_t)name, (uint64_t)len, (uint64_t)dev);
	NEED_DEVICE(dev);
	snprintf(name, (size_t)len, "Stand-in GPU %d", dev);
	return SUCCESS;
}

API cuDeviceGetPCIBusId(char *id, int len, int dev) {
	ENTER((uint64_t)id, (uint64_t)len, (uint64_t)dev);
	NEED_DEVICE(dev);
	if (len < 13) return INVALID_VALUE;
	snprintf(id, (size_t)len, "0000:%02X:00.0", dev + 1);
	return SUCCESS;
}

API cuDeviceGetByPCIBusId(int *dev, const char *id) {
	ENTER((uint64_t)dev, (uint64_t)id);
	unsigned domain, bus, slot;
	if (sscanf(id, "%x:%x:%x.0", &domain, &bus, &slot) != 3) return INVALID_VALUE;
	if (domain || slot || bus < 1 || bus > FAKE_DEVICES) return INVALID_DEVICE;
	*dev = (int)bus - 1;
	return SUCCESS;
}

API cuDeviceGetAttribute(int *v, int attribute, int dev) {
	ENTER((uint64_t)v, (uint64_t)attribute, (uint64_t)dev);
	NEED_DEVICE(dev);
	switch (attribute) {
	case 1: *v = 1024; break;       // MAX_THREADS_PER_BLOCK
	case 11: *v = 0x7fffffff; break; // MAX_PITCH
	case 16: *v = 8; break;         // MULTIPROCESSOR_COUNT
	case 19: case 31: case 41: *v = 1; break; // map host memory, concurrent kernels, unified addressing
	case 33: *v = dev + 1; break;   // PCI_BUS_ID
	case 40: *v = 2; break;         // ASYNC_ENGINE_COUNT
	case 75: *v = 8; break;         // compute capability
	case 76: *v = 9; break;
	default:
		if (attribute < 1 || attribute > 200) return INVALID_VALUE;
		*v = 0;
	}
	return SUCCESS;
}

API cuDeviceTotalMem_v2(size_t *n, int dev) {
	ENTER((uint64_t)n, (uint64_t)dev);
	NEED_DEVICE(dev);
	*n = 24ull << 30; // shows a 32-bit cell
	return SUCCESS;
}

static int uuid(unsigned char *id, int version, int dev) {
	NEED_DEVICE(dev);
	for (int i = 0; i < 16; i++) id[i] = (unsigned char)(i + 16 * dev);
	id[15] = (unsigned char)version;
	return SUCCESS;
}

API cuDeviceGetUuid(unsigned char *id, int dev) {
	ENTER((uint64_t)id, (uint64_t)dev);
	return uuid(id, 1, dev);
}

API cuDeviceGetUuid_v2(unsigned char *id, int dev) {
	ENTER((uint64_t)id, (uint64_t)dev);
	return uuid(id, 2, dev);
}

API cuDeviceCanAccessPeer(int *can, int dev, int peer) {
	ENTER((uint64_t)can, (uint64_t)dev, (uint64_t)peer);
	NEED_DEVICE(dev);
	NEED_DEVICE(peer);
	*can = dev != peer;
	return SUCCESS;
}

API cuDeviceGetP2PAttribute(int *v, int attribute, int src, int dst) {
	ENTER((uint64_t)v, (uint64_t)attribute, (uint64_t)src, (uint64_t)dst);
	NEED_DEVICE(src);
	NEED_DEVICE(dst);
	if (src == dst) return INVALID_DEVICE;
	*v = 10 * attribute + dst;
	return SUCCESS;
}

// ---- contexts ----

API cuDevicePrimaryCtxRetain(handle *out, int dev) {
	ENTER((uint64_t)out, (uint64_t)dev);
	NEED_DEVICE(dev);
	struct object *c = get(CONTEXT, primary[dev]);
	if (!c) {
		primary[dev] = make(CONTEXT, &c);
		c->device = dev;
	}
	c->refs++;
	*out = primary[dev];
	return SUCCESS;
}

API cuDevicePrimaryCtxRelease_v2(int dev) {
	ENTER((uint64_t)dev);
	NEED_DEVICE(dev);
	struct object *c = get(CONTEXT, primary[dev]);
	if (!c) return INVALID_CONTEXT;
	if (--c->refs == 0) drop(CONTEXT, c);
	return SUCCESS;
}

API cuDevicePrimaryCtxGetState(int dev, unsigned *flags, int *active) {
	ENTER((uint64_t)dev, (uint64_t)flags, (uint64_t)active);
	NEED_DEVICE(dev);
	*flags = 0;
	*active = get(CONTEXT, primary[dev]) != NULL;
	return SUCCESS;
}

// cuCtxCreate_v2 is not bound by the library: a test makes a second context of
// a device with it, as a foreign library would.
API cuCtxCreate_v2(handle *out, unsigned flags, int dev) {
	ENTER((uint64_t)out, (uint64_t)flags, (uint64_t)dev);
	NEED_DEVICE(dev);
	if (depth == 64) return OUT_OF_MEMORY;
	struct object *c;
	*out = make(CONTEXT, &c);
	c->device = dev;
	c->refs = 1;
	stack[depth++] = *out;
	return SUCCESS;
}

API cuCtxGetCurrent(handle *out) {
	ENTER((uint64_t)out);
	*out = depth ? stack[depth - 1] : 0;
	return SUCCESS;
}

API cuCtxSetCurrent(handle h) {
	ENTER(h);
	if (h && !get(CONTEXT, h)) return INVALID_CONTEXT;
	if (!h) {
		if (depth) depth--;
		return SUCCESS;
	}
	if (!depth) depth = 1;
	stack[depth - 1] = h;
	return SUCCESS;
}

API cuCtxPushCurrent_v2(handle h) {
	ENTER(h);
	if (!get(CONTEXT, h)) return INVALID_CONTEXT;
	if (depth == 64) return OUT_OF_MEMORY;
	stack[depth++] = h;
	return SUCCESS;
}

API cuCtxPopCurrent_v2(handle *out) {
	ENTER((uint64_t)out);
	if (!depth) return INVALID_CONTEXT;
	*out = stack[--depth];
	return SUCCESS;
}

API cuCtxGetDevice(int *dev) {
	ENTER((uint64_t)dev);
	NEED_CONTEXT;
	*dev = get(CONTEXT, ctx)->device;
	return SUCCESS;
}

API cuCtxSynchronize(void) {
	ENTER();
	NEED_CONTEXT;
	UNSAFE_IN_CAPTURE;
	return SUCCESS;
}

API cuCtxEnablePeerAccess(handle peer, unsigned flags) {
	ENTER(peer, flags);
	if (flags) return INVALID_VALUE;
	NEED_CONTEXT;
	struct object *c = get(CONTEXT, ctx), *p = get(CONTEXT, peer);
	if (!p) return INVALID_CONTEXT;
	if (p->device == c->device) return PEER_UNSUPPORTED;
	if (c->peers & 1u << p->device) return PEER_ALREADY;
	c->peers |= 1u << p->device;
	return SUCCESS;
}

API cuCtxDisablePeerAccess(handle peer) {
	ENTER(peer);
	NEED_CONTEXT;
	struct object *c = get(CONTEXT, ctx), *p = get(CONTEXT, peer);
	if (!p) return INVALID_CONTEXT;
	if (!(c->peers & 1u << p->device)) return PEER_NOT;
	c->peers &= ~(1u << p->device);
	return SUCCESS;
}

// ---- memory ----

enum { HOST = 1, DEVICE = 2, REGISTERED = 3 };

static struct memory {
	char *base;
	size_t n;
	int type;
	unsigned flags;
	handle ctx;
	struct memory *next;
} *memory;

// Device addresses of host memory differ from its host addresses by this much:
// whoever takes one for the other is found out.
#define ALIAS 0x100000000000ull

static struct memory *find(uint64_t p) {
	for (struct memory *m = memory; m; m = m->next)
		if (p >= (uint64_t)m->base && p < (uint64_t)m->base + m->n) return m;
	return NULL;
}

// device_memory finds what a device address means, and where its bytes are.
static struct memory *device_memory(devptr p, size_t n, char **at) {
	struct memory *m = find(p);
	if (!m || m->type != DEVICE) {
		p -= ALIAS;
		m = find(p);
		if (!m || m->type == DEVICE) return NULL;
	}
	if (p + n > (uint64_t)m->base + m->n) return NULL;
	*at = (char *)p;
	return m;
}

static void remember(char *base, size_t n, int type, unsigned flags, handle ctx) {
	struct memory *m = calloc(1, sizeof *m);
	*m = (struct memory){base, n, type, flags, ctx, memory};
	memory = m;
	if (type == DEVICE) memories++; else hosts++;
}

static int forget(uint64_t p, int type) {
	for (struct memory **m = &memory; *m; m = &(*m)->next) {
		struct memory *it = *m;
		if ((uint64_t)it->base != p || it->type != type) continue;
		*m = it->next;
		if (type == DEVICE) memories--; else hosts--;
		if (type != REGISTERED) free(it->base);
		free(it);
		return 1;
	}
	return 0;
}

API cuMemGetInfo_v2(size_t *avail, size_t *total) {
	ENTER((uint64_t)avail, (uint64_t)total);
	NEED_CONTEXT;
	*avail = 23ull << 30;
	*total = 24ull << 30;
	return SUCCESS;
}

API cuMemAlloc_v2(devptr *out, size_t n) {
	ENTER((uint64_t)out, n);
	NEED_CONTEXT;
	UNSAFE_IN_CAPTURE;
	if (!n) return INVALID_VALUE;
	if (n > 24ull << 30) return OUT_OF_MEMORY;
	char *p = aligned_alloc(512, (n + 511) / 512 * 512);
	if (!p) return OUT_OF_MEMORY;
	remember(p, n, DEVICE, 0, ctx);
	*out = (devptr)p;
	return SUCCESS;
}

API cuMemFree_v2(devptr p) {
	ENTER(p);
	UNSAFE_IN_CAPTURE;
	if (!p) return SUCCESS;
	return forget(p, DEVICE) ? SUCCESS : INVALID_VALUE;
}

API cuMemHostAlloc(void **out, size_t n, unsigned flags) {
	ENTER((uint64_t)out, n, flags);
	NEED_CONTEXT;
	UNSAFE_IN_CAPTURE;
	if (!n) return INVALID_VALUE;
	if (n > 24ull << 30) return OUT_OF_MEMORY;
	void *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
	if (!p) return OUT_OF_MEMORY;
	remember(p, n, HOST, flags, ctx);
	*out = p;
	return SUCCESS;
}

API cuMemFreeHost(void *p) {
	ENTER((uint64_t)p);
	UNSAFE_IN_CAPTURE;
	return forget((uint64_t)p, HOST) ? SUCCESS : INVALID_VALUE;
}

API cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
	ENTER((uint64_t)p, n, flags);
	NEED_CONTEXT;
	if (!p || !n) return INVALID_VALUE;
	if (find((uint64_t)p)) return ALREADY_REGISTERED;
	remember(p, n, REGISTERED, flags, ctx);
	return SUCCESS;
}

API cuMemHostUnregister(void *p) {
	ENTER((uint64_t)p);
	return forget((uint64_t)p, REGISTERED) ? SUCCESS : NOT_REGISTERED;
}

API cuMemHostGetDevicePointer_v2(devptr *out, void *p, unsigned flags) {
	ENTER((uint64_t)out, (uint64_t)p, flags);
	NEED_CONTEXT;
	struct memory *m = find((uint64_t)p);
	if (flags || !m || m->type == DEVICE) return INVALID_VALUE;
	*out = (devptr)p + ALIAS;
	return SUCCESS;
}

API cuMemHostGetFlags(unsigned *flags, void *p) {
	ENTER((uint64_t)flags, (uint64_t)p);
	struct memory *m = find((uint64_t)p);
	if (!m || m->type == DEVICE) return INVALID_VALUE;
	*flags = m->flags;
	return SUCCESS;
}

API cuMemGetAddressRange_v2(devptr *base, size_t *n, devptr p) {
	ENTER((uint64_t)base, (uint64_t)n, p);
	char *at;
	struct memory *m = device_memory(p, 1, &at);
	if (!m) return NOT_FOUND;
	*base = (devptr)m->base + (m->type == DEVICE ? 0 : ALIAS);
	*n = m->n;
	return SUCCESS;
}

API cuPointerGetAttribute(void *out, int attribute, devptr p) {
	ENTER((uint64_t)out, (uint64_t)attribute, p);
	char *at = NULL;
	struct memory *m = device_memory(p, 1, &at);
	if (!m && (m = find(p))) at = (char *)p;
	if (!m) return INVALID_VALUE;
	switch (attribute) {
	case 1: *(handle *)out = m->ctx; break;
	case 2: *(unsigned *)out = m->type == DEVICE ? 2 : 1; break;
	case 3: *(devptr *)out = (devptr)at + (m->type == DEVICE ? 0 : ALIAS); break;
	case 4:
		if (m->type == DEVICE) return INVALID_VALUE;
		*(void **)out = at;
		break;
	case 8: *(unsigned char *)out = 0; break;
	case 9: {
		struct object *c = get(CONTEXT, m->ctx);
		*(int *)out = c ? c->device : -1;
		break;
	}
	case 11: *(devptr *)out = (devptr)m->base + (m->type == DEVICE ? 0 : ALIAS); break;
	case 12: *(size_t *)out = m->n; break;
	default: return INVALID_VALUE;
	}
	return SUCCESS;
}

// ---- streams ----

// stream_ctx gives the context of a stream; the special handles take the
// current one.
static int stream_ctx(handle s, handle *ctx, struct object **o) {
	*o = NULL;
	if (s <= 2) {
		*ctx = current();
		return *ctx ? SUCCESS : INVALID_CONTEXT;
	}
	*o = get(STREAM, s);
	if (!*o) return INVALID_HANDLE;
	*ctx = (*o)->ctx;
	return get(CONTEXT, *ctx) ? SUCCESS : INVALID_CONTEXT;
}

#define NEED_STREAM(s) handle sctx_; struct object *stream; \
	do { int code_ = stream_ctx((s), &sctx_, &stream); if (code_) return code_; (void)stream; } while (0)

API cuStreamCreate(handle *out, unsigned flags) {
	ENTER((uint64_t)out, flags);
	NEED_CONTEXT;
	if (flags > 1) return INVALID_VALUE;
	struct object *o;
	*out = make(STREAM, &o);
	o->ctx = ctx;
	o->flags = flags;
	return SUCCESS;
}

API cuStreamDestroy_v2(handle s) {
	ENTER(s);
	struct object *o = get(STREAM, s);
	if (!o) return INVALID_HANDLE;
	drop(STREAM, o);
	return SUCCESS;
}

API cuStreamQuery(handle s) {
#ifdef FAKE_QUIET
	(void)s;
	return SUCCESS;
#else
	ENTER(s);
	NEED_STREAM(s);
	if (stream && stream->capture) return CAPTURE_UNSUPPORTED;
	return SUCCESS;
#endif
}

API cuStreamSynchronize(handle s) {
	ENTER(s);
	NEED_STREAM(s);
	if (stream && stream->capture) {
		stream->capture = 2;
		return CAPTURE_UNSUPPORTED;
	}
	return SUCCESS;
}

API cuStreamWaitEvent(handle s, handle e, unsigned flags) {
	ENTER(s, e, flags);
	if (flags) return INVALID_VALUE;
	NEED_STREAM(s);
	// The event may be of any context.
	return get(EVENT, e) ? SUCCESS : INVALID_HANDLE;
}

API cuStreamGetCtx(handle s, handle *out) {
	ENTER(s, (uint64_t)out);
	NEED_STREAM(s);
	*out = sctx_;
	return SUCCESS;
}

API cuStreamIsCapturing(handle s, int *status) {
	ENTER(s, (uint64_t)status);
	NEED_STREAM(s);
	*status = stream ? stream->capture : 0;
	return SUCCESS;
}

API cuStreamBeginCapture_v2(handle s, int mode) {
	ENTER(s, (uint64_t)mode);
	NEED_STREAM(s);
	if (!stream) return CAPTURE_UNSUPPORTED; // the legacy stream cannot be captured
	if (mode < 0 || mode > 2) return INVALID_VALUE;
	if (stream->capture) return INVALID_VALUE;
	stream->capture = 1;
	stream->capture_mode = mode;
	return SUCCESS;
}

API cuStreamEndCapture(handle s, handle *graph) {
	ENTER(s, (uint64_t)graph);
	NEED_STREAM(s);
	if (!stream || !stream->capture) return INVALID_VALUE;
	int was = stream->capture;
	stream->capture = 0;
	*graph = 0;
	if (was == 2) return CAPTURE_INVALIDATED;
	struct object *o;
	*graph = make(GRAPH, &o);
	return SUCCESS;
}

API cuThreadExchangeStreamCaptureMode(int *mode) {
	ENTER((uint64_t)mode);
	if (*mode < 0 || *mode > 2) return INVALID_VALUE;
	int was = thread_mode;
	thread_mode = *mode;
	*mode = was;
	return SUCCESS;
}

API cuGraphDestroy(handle g) {
	ENTER(g);
	struct object *o = get(GRAPH, g);
	if (!o) return INVALID_HANDLE;
	drop(GRAPH, o);
	return SUCCESS;
}

// ---- copies ----

// A host address of a copy may be any memory of the process; a device address
// must be known.
static int move(void *dst, const void *src, size_t n) {
	memmove(dst, src, n);
	return SUCCESS;
}

API cuMemcpyHtoD_v2(devptr dst, const void *src, size_t n) {
	ENTER(dst, (uint64_t)src, n);
	NEED_CONTEXT;
	char *d;
	UNSAFE_IN_CAPTURE;
	if (!device_memory(dst, n, &d)) return INVALID_VALUE;
	return move(d, src, n);
}

API cuMemcpyDtoH_v2(void *dst, devptr src, size_t n) {
	ENTER((uint64_t)dst, src, n);
	NEED_CONTEXT;
	char *s;
	UNSAFE_IN_CAPTURE;
	if (!device_memory(src, n, &s)) return INVALID_VALUE;
	return move(dst, s, n);
}

API cuMemcpyHtoDAsync_v2(devptr dst, const void *src, size_t n, handle st) {
	ENTER(dst, (uint64_t)src, n, st);
	NEED_STREAM(st);
	char *d;
	if (!device_memory(dst, n, &d)) return INVALID_VALUE;
	return move(d, src, n);
}

API cuMemcpyDtoHAsync_v2(void *dst, devptr src, size_t n, handle st) {
	ENTER((uint64_t)dst, src, n, st);
	NEED_STREAM(st);
	char *s;
	if (!device_memory(src, n, &s)) return INVALID_VALUE;
	return move(dst, s, n);
}

API cuMemcpyDtoDAsync_v2(devptr dst, devptr src, size_t n, handle st) {
	ENTER(dst, src, n, st);
	NEED_STREAM(st);
	char *d, *s;
	if (!device_memory(dst, n, &d) || !device_memory(src, n, &s)) return INVALID_VALUE;
	return move(d, s, n);
}

API cuMemcpyPeerAsync(devptr dst, handle dctx, devptr src, handle sctx, size_t n, handle st) {
	ENTER(dst, dctx, src, sctx, n, st);
	NEED_STREAM(st);
	if (!get(CONTEXT, dctx) || !get(CONTEXT, sctx)) return INVALID_CONTEXT;
	char *d, *s;
	if (!device_memory(dst, n, &d) || !device_memory(src, n, &s)) return INVALID_VALUE;
	return move(d, s, n);
}

// CUDA_MEMCPY2D_v2 as cuda.h declares it.
typedef struct {
	size_t srcXInBytes, srcY;
	int srcMemoryType;
	const void *srcHost;
	devptr srcDevice;
	void *srcArray;
	size_t srcPitch;
	size_t dstXInBytes, dstY;
	int dstMemoryType;
	void *dstHost;
	devptr dstDevice;
	void *dstArray;
	size_t dstPitch;
	size_t WidthInBytes, Height;
} memcpy2d;

// fake_memcpy2d_layout gives the offset of field i, and the size at the end.
EXPORT long fake_memcpy2d_layout(int i) {
	static const size_t at[] = {
		offsetof(memcpy2d, srcXInBytes), offsetof(memcpy2d, srcY), offsetof(memcpy2d, srcMemoryType),
		offsetof(memcpy2d, srcHost), offsetof(memcpy2d, srcDevice), offsetof(memcpy2d, srcArray), offsetof(memcpy2d, srcPitch),
		offsetof(memcpy2d, dstXInBytes), offsetof(memcpy2d, dstY), offsetof(memcpy2d, dstMemoryType),
		offsetof(memcpy2d, dstHost), offsetof(memcpy2d, dstDevice), offsetof(memcpy2d, dstArray), offsetof(memcpy2d, dstPitch),
		offsetof(memcpy2d, WidthInBytes), offsetof(memcpy2d, Height), sizeof(memcpy2d),
	};
	return i < (int)(sizeof at / sizeof *at) ? (long)at[i] : -1;
}

API cuMemcpy2DAsync_v2(const memcpy2d *c, handle st) {
	ENTER((uint64_t)c, st);
	NEED_STREAM(st);
	if (c->srcArray || c->dstArray) return INVALID_VALUE;
	if (c->WidthInBytes > c->srcPitch || c->WidthInBytes > c->dstPitch) return INVALID_VALUE;
	if (!c->WidthInBytes || !c->Height) return SUCCESS;
	size_t sn = c->srcPitch * (c->Height - 1) + c->WidthInBytes, dn = c->dstPitch * (c->Height - 1) + c->WidthInBytes;
	char *s, *d;
	if (c->srcMemoryType == 1) s = (char *)c->srcHost;
	else if (c->srcMemoryType != 2 || !device_memory(c->srcDevice, sn, &s)) return INVALID_VALUE;
	if (c->dstMemoryType == 1) d = c->dstHost;
	else if (c->dstMemoryType != 2 || !device_memory(c->dstDevice, dn, &d)) return INVALID_VALUE;
	for (size_t y = 0; y < c->Height; y++) memmove(d + y * c->dstPitch, s + y * c->srcPitch, c->WidthInBytes);
	return SUCCESS;
}

API cuMemsetD8Async(devptr dst, unsigned char v, size_t n, handle st) {
	ENTER(dst, v, n, st);
	NEED_STREAM(st);
	char *d;
	if (!device_memory(dst, n, &d)) return INVALID_VALUE;
	memset(d, v, n);
	return SUCCESS;
}

API cuMemsetD32Async(devptr dst, unsigned v, size_t n, handle st) {
	ENTER(dst, v, n, st);
	NEED_STREAM(st);
	char *d;
	if (dst % 4 || !device_memory(dst, 4 * n, &d)) return INVALID_VALUE;
	for (size_t i = 0; i < n; i++) memcpy(d + 4 * i, &v, 4);
	return SUCCESS;
}

// ---- events ----

API cuEventCreate(handle *out, unsigned flags) {
	ENTER((uint64_t)out, flags);
	NEED_CONTEXT;
	struct object *o;
	*out = make(EVENT, &o);
	o->ctx = ctx;
	o->flags = flags;
	return SUCCESS;
}

API cuEventDestroy_v2(handle e) {
	ENTER(e);
	struct object *o = get(EVENT, e);
	if (!o) return INVALID_HANDLE;
	drop(EVENT, o);
	return SUCCESS;
}

API cuEventRecord(handle e, handle s) {
	ENTER(e, s);
	struct object *o = get(EVENT, e);
	if (!o) return INVALID_HANDLE;
	NEED_STREAM(s);
	if (o->ctx != sctx_) return INVALID_HANDLE;
	o->recorded = 1;
	clock_gettime(CLOCK_MONOTONIC, &o->at);
	return SUCCESS;
}

API cuEventQuery(handle e) {
	ENTER(e);
	return get(EVENT, e) ? SUCCESS : INVALID_HANDLE;
}

API cuEventSynchronize(handle e) {
	ENTER(e);
	return get(EVENT, e) ? SUCCESS : INVALID_HANDLE;
}

API cuEventElapsedTime(float *ms, handle start, handle end) {
	ENTER((uint64_t)ms, start, end);
	struct object *a = get(EVENT, start), *b = get(EVENT, end);
	if (!a || !b || a->ctx != b->ctx) return INVALID_HANDLE;
	if ((a->flags | b->flags) & 2 || !a->recorded || !b->recorded) return INVALID_HANDLE;
	*ms = (float)((double)(b->at.tv_sec - a->at.tv_sec) * 1e3 + (double)(b->at.tv_nsec - a->at.tv_nsec) * 1e-6);
	return SUCCESS;
}

// ---- modules ----

// An image is taken if it begins like PTX or like an ELF file.
API cuModuleLoadDataEx(handle *out, const void *image, unsigned n, const int *options, void **values) {
	ENTER((uint64_t)out, (uint64_t)image, n, (uint64_t)options, (uint64_t)values);
	NEED_CONTEXT;
	UNSAFE_IN_CAPTURE;
	char *log = NULL;
	size_t size = 0;
	unsigned at = 0;
	for (unsigned i = 0; i < n; i++) {
		if (options[i] == 5) log = values[i];
		else if (options[i] == 6) size = (size_t)(uint32_t)(uintptr_t)values[at = i];
		else return INVALID_VALUE;
	}
	const char *text = image;
	if (memcmp(text, "\x7f" "ELF", 4) && strncmp(text, "//", 2) && strncmp(text, ".version", 8)) {
		if (log) {
			int m = snprintf(log, size, "stand-in: fatal : not PTX");
			values[at] = (void *)(uintptr_t)m;
		}
		return *text >= ' ' ? INVALID_PTX : INVALID_IMAGE;
	}
	struct object *o;
	*out = make(MODULE, &o);
	o->ctx = ctx;
	return SUCCESS;
}

API cuModuleUnload(handle m) {
	ENTER(m);
	struct object *o = get(MODULE, m);
	if (!o) return INVALID_HANDLE;
	NEED_CONTEXT;
	if (o->ctx != ctx) return INVALID_CONTEXT;
	drop(MODULE, o);
	return SUCCESS;
}

// Any name is found, unless it begins with "no".
API cuModuleGetFunction(handle *out, handle m, const char *name) {
	ENTER((uint64_t)out, m, (uint64_t)name);
	struct object *o = get(MODULE, m);
	if (!o) return INVALID_HANDLE;
	if (!strncmp(name, "no", 2)) return NOT_FOUND;
	struct object *f;
	*out = make(FUNCTION, &f);
	f->ctx = o->ctx;
	snprintf(f->name, sizeof f->name, "%s", name);
	return SUCCESS;
}

API cuFuncGetAttribute(int *v, int attribute, handle f) {
	ENTER((uint64_t)v, (uint64_t)attribute, f);
	if (!get(FUNCTION, f)) return INVALID_HANDLE;
	static const int values[] = {1024, 0, 0, 0, 32, 70, 80};
	if (attribute < 0 || attribute > 6) return INVALID_VALUE;
	*v = values[attribute];
	return SUCCESS;
}

static struct {
	unsigned dims[7]; // grid, block, shared bytes
	handle function, stream;
	size_t n;
	unsigned char params[4096];
} launched;

API cuLaunchKernel(handle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		unsigned shared, handle st, void **params, void **extra) {
	ENTER(f, gx, gy, gz, bx, by, bz, shared, st, (uint64_t)params, (uint64_t)extra);
	struct object *o = get(FUNCTION, f);
	if (!o) return INVALID_HANDLE;
	NEED_STREAM(st);
	if (o->ctx != sctx_) return INVALID_HANDLE;
	if (params && extra) return INVALID_VALUE;
	if (!gx || !gy || !gz || !bx || !by || !bz) return INVALID_VALUE;
	const void *buffer = NULL;
	const size_t *size = NULL;
	if (extra) for (int i = 0; extra[i]; i += 2) {
		if (extra[i] == (void *)1) buffer = extra[i + 1];
		else if (extra[i] == (void *)2) size = extra[i + 1];
		else return INVALID_VALUE;
	}
	launched.n = 0;
	if (buffer && size) {
		if (*size > sizeof launched.params || (uint64_t)buffer % 8) return INVALID_VALUE;
		memcpy(launched.params, buffer, launched.n = *size);
	}
	unsigned dims[] = {gx, gy, gz, bx, by, bz, shared};
	memcpy(launched.dims, dims, sizeof dims);
	launched.function = f;
	launched.stream = st;
	return SUCCESS;
}

// fake_launched copies what the last launch was given: seven dimensions, then
// the parameters; it returns how many bytes of parameters there were.
EXPORT long fake_launched(unsigned *dims, unsigned char *params, long room) {
	pthread_mutex_lock(&lock);
	memcpy(dims, launched.dims, sizeof launched.dims);
	long n = (long)launched.n;
	memcpy(params, launched.params, (size_t)(n < room ? n : room));
	pthread_mutex_unlock(&lock);
	return n;
}

// fake_loop calls a function n times with one argument and returns how many
// nanoseconds that took: what the call costs C.
EXPORT int64_t fake_loop(int (*volatile fn)(uint64_t), int64_t n, uint64_t arg) {
	struct timespec a, b;
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (int64_t i = 0; i < n; i++) fn(arg);
	clock_gettime(CLOCK_MONOTONIC, &b);
	return (int64_t)(b.tv_sec - a.tv_sec) * 1000000000 + (b.tv_nsec - a.tv_nsec);
}
