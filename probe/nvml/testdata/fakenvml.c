// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for NVML: the exported names, the structs as nvml.h lays them out,
// and its rules about initialisation, struct versions and buffer sizes. Every
// value differs from every other, so that a swapped field or argument shows. It
// is compiled by tests.
//
// Defines:
//   FAKE_DEVICES=n    how many GPUs there are (3, the most)
//   FAKE_BARE         only nvmlInit_v2 and nvmlShutdown
//   nvmlX=other       a library that lacks nvmlX

#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef FAKE_DEVICES
#define FAKE_DEVICES 3
#endif
#define MAX_DEVICES 3

#define API __attribute__((visibility("default"))) int

enum {
	SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
	GPU_IS_LOST = 15, ARGUMENT_VERSION_MISMATCH = 25,
};

typedef struct {
	char busIdLegacy[16];
	unsigned int domain;
	unsigned int bus;
	unsigned int device;
	unsigned int pciDeviceId;
	unsigned int pciSubSystemId;
	char busId[32];
} nvmlPciInfo_t;

typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned long long bar1Total, bar1Free, bar1Used; } nvmlBAR1Memory_t;
typedef struct { unsigned int version, environment, ccFeature, devToolsMode, multiGpuMode; } nvmlSystemConfComputeSettings_t;
typedef struct { unsigned int environment, ccFeature, devToolsMode; } nvmlConfComputeSystemState_t;

// The handle is a true pointer: one that is cut to 32 bits finds nothing.
static struct gpu { int lost; } gpus[MAX_DEVICES];
typedef struct gpu *nvmlDevice_t;

// ---- what a test can see and steer ----

static atomic_int inits, inside, most_inside, calls;
static atomic_int starting; // what nvmlInit_v2 answers
static atomic_int failing;  // what every function but nvmlInit_v2 and nvmlShutdown answers

API fake_inits(void) { return inits; }
API fake_calls(void) { return calls; }
API fake_most_inside(void) { return most_inside; }
API fake_start(int code) { starting = code; return 0; }
API fake_fail(int code) { failing = code; return 0; }
API fake_lose(int i, int lost) { gpus[i].lost = lost; return 0; }

// fake_layout is the offset of field i of a struct, its size after the last,
// then -1.
__attribute__((visibility("default"))) long fake_layout(int which, int i) {
#define AT(t, f) offsetof(t, f)
	static const long pci[] = {
		AT(nvmlPciInfo_t, busIdLegacy), AT(nvmlPciInfo_t, domain), AT(nvmlPciInfo_t, bus), AT(nvmlPciInfo_t, device),
		AT(nvmlPciInfo_t, pciDeviceId), AT(nvmlPciInfo_t, pciSubSystemId), AT(nvmlPciInfo_t, busId), sizeof(nvmlPciInfo_t), -1};
	static const long memory[] = {
		AT(nvmlMemory_t, total), AT(nvmlMemory_t, free), AT(nvmlMemory_t, used), sizeof(nvmlMemory_t), -1};
	static const long bar1[] = {
		AT(nvmlBAR1Memory_t, bar1Total), AT(nvmlBAR1Memory_t, bar1Free), AT(nvmlBAR1Memory_t, bar1Used), sizeof(nvmlBAR1Memory_t), -1};
	static const long settings[] = {
		AT(nvmlSystemConfComputeSettings_t, version), AT(nvmlSystemConfComputeSettings_t, environment),
		AT(nvmlSystemConfComputeSettings_t, ccFeature), AT(nvmlSystemConfComputeSettings_t, devToolsMode),
		AT(nvmlSystemConfComputeSettings_t, multiGpuMode), sizeof(nvmlSystemConfComputeSettings_t), -1};
	static const long state[] = {
		AT(nvmlConfComputeSystemState_t, environment), AT(nvmlConfComputeSystemState_t, ccFeature),
		AT(nvmlConfComputeSystemState_t, devToolsMode), sizeof(nvmlConfComputeSystemState_t), -1};
	static const long *all[] = {pci, memory, bar1, settings, state};
	return all[which][i];
}

__attribute__((unused)) static void leave(int *unused) { (void)unused; inside--; }

// ENTER counts the threads that are inside at once, and stays long enough for
// another to come in if nothing keeps it out.
#define ENTER \
	__attribute__((cleanup(leave))) int entered = ++inside; \
	for (int most = most_inside; entered > most && !atomic_compare_exchange_weak(&most_inside, &most, entered);) {} \
	calls++; \
	usleep(20); \
	if (inits == 0) return UNINITIALIZED; \
	if (failing) return failing

__attribute__((unused)) static int index_of(nvmlDevice_t d) {
	for (int i = 0; i < FAKE_DEVICES; i++)
		if (d == &gpus[i]) return i;
	return -1;
}

// GPU makes i the device's number.
#define GPU(d) \
	ENTER; \
	int i = index_of(d); \
	if (i < 0) return INVALID_ARGUMENT; \
	if (gpus[i].lost) return GPU_IS_LOST

__attribute__((unused, format(printf, 3, 4))) static int put(char *out, unsigned int size, const char *format, ...) {
	va_list args;
	va_start(args, format);
	char text[128];
	int n = vsnprintf(text, sizeof text, format, args);
	va_end(args);
	if ((unsigned int)n >= size) return INSUFFICIENT_SIZE;
	strcpy(out, text);
	return SUCCESS;
}

// ---- NVML ----

API nvmlInit_v2(void) {
	calls++;
	if (starting == SUCCESS) inits++;
	return starting;
}

API nvmlShutdown(void) {
	calls++;
	if (inits == 0) return UNINITIALIZED;
	inits--;
	return SUCCESS;
}

#ifndef FAKE_BARE

__attribute__((visibility("default"))) const char *nvmlErrorString(int code) {
	static char text[64];
	snprintf(text, sizeof text, "stand-in's words for %d", code);
	return text;
}

// NVML tells its own version without being initialised.
API nvmlSystemGetNVMLVersion(char *version, unsigned int length) { return put(version, length, "13.580.65.06"); }
API nvmlSystemGetDriverVersion(char *version, unsigned int length) { ENTER; return put(version, length, "580.159.04"); }
API nvmlSystemGetCudaDriverVersion_v2(int *version) { ENTER; *version = 13000; return SUCCESS; }

API nvmlSystemGetConfComputeSettings(nvmlSystemConfComputeSettings_t *s) {
	ENTER;
	if (s->version != (sizeof *s | 1 << 24)) return ARGUMENT_VERSION_MISMATCH;
	s->environment = 2; s->ccFeature = 1; s->devToolsMode = 0; s->multiGpuMode = 1;
	return SUCCESS;
}

API nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *s) {
	ENTER;
	s->environment = 1; s->ccFeature = 0; s->devToolsMode = 1;
	return SUCCESS;
}

API nvmlDeviceGetCount_v2(unsigned int *n) { ENTER; *n = FAKE_DEVICES; return SUCCESS; }

API nvmlDeviceGetHandleByIndex_v2(unsigned int i, nvmlDevice_t *d) {
	ENTER;
	if (i >= FAKE_DEVICES) return INVALID_ARGUMENT;
	if (gpus[i].lost) return GPU_IS_LOST;
	*d = &gpus[i];
	return SUCCESS;
}

static const unsigned int domains[MAX_DEVICES] = {0, 0, 0x10000};

API nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *d) {
	ENTER;
	unsigned int domain, bus, device, function;
	if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4) return INVALID_ARGUMENT;
	for (int i = 0; i < FAKE_DEVICES; i++)
		if (domain == domains[i] && bus == 0xC1u + (unsigned)i && device == 0 && function == 0) {
			if (gpus[i].lost) return GPU_IS_LOST;
			*d = &gpus[i];
			return SUCCESS;
		}
	return NOT_FOUND;
}

API nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *d) {
	ENTER;
	int i;
	if (sscanf(uuid, "GPU-%x", (unsigned int *)&i) != 1 || i < 0 || i >= FAKE_DEVICES) return NOT_FOUND;
	if (gpus[i].lost) return GPU_IS_LOST;
	*d = &gpus[i];
	return SUCCESS;
}

API nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned int length) { GPU(d); return put(name, length, "Stand-in GPU %d", i); }
API nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned int length) {
	GPU(d);
	return put(uuid, length, "GPU-%08x-1111-2222-3333-444444444444", i);
}
API nvmlDeviceGetSerial(nvmlDevice_t d, char *serial, unsigned int length) {
	GPU(d);
	return i == 1 ? NOT_SUPPORTED : put(serial, length, "16600%d", i);
}
API nvmlDeviceGetVbiosVersion(nvmlDevice_t d, char *version, unsigned int length) { GPU(d); return put(version, length, "95.02.3c.80.0%d", i); }
API nvmlDeviceGetArchitecture(nvmlDevice_t d, unsigned int *out) { GPU(d); *out = i == 2 ? 0xffffffff : 8u + (unsigned)i; return SUCCESS; }
API nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned int *out) { GPU(d); *out = 7u - (unsigned)i; return SUCCESS; }
API nvmlDeviceGetDisplayActive(nvmlDevice_t d, unsigned int *out) { GPU(d); *out = i == 0; return SUCCESS; }

static void fill(nvmlPciInfo_t *p, unsigned int domain, unsigned int bus, unsigned int id, unsigned int sub) {
	memset(p, 0xff, sizeof *p); // nothing may rely on zeros behind the text
	p->domain = domain; p->bus = bus; p->device = 0; p->pciDeviceId = id; p->pciSubSystemId = sub;
	snprintf(p->busIdLegacy, sizeof p->busIdLegacy, "%04X:%02X:00.0", domain & 0xffff, bus & 0xff);
	snprintf(p->busId, sizeof p->busId, "%08X:%02X:00.0", domain, bus & 0xff);
}

API nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *p) {
	GPU(d);
	fill(p, domains[i], 0xC1u + (unsigned)i, 0x268410DEu + ((unsigned)i << 16), 0x16F11043u + (unsigned)i);
	return SUCCESS;
}

API nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m) {
	GPU(d);
	m->total = 24564ULL << 20; m->free = (24000ULL + (unsigned)i) << 20; m->used = m->total - m->free;
	return SUCCESS;
}

API nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t d, nvmlBAR1Memory_t *m) {
	GPU(d);
	if (i == 1) return NOT_SUPPORTED;
	m->bar1Total = i == 0 ? 32768ULL << 20 : 256ULL << 20; m->bar1Used = 3ULL << 20; m->bar1Free = m->bar1Total - m->bar1Used;
	return SUCCESS;
}

API nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t d, unsigned int *out) { GPU(d); *out = 1u + (unsigned)i; return SUCCESS; }
API nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t d, unsigned int *out) { GPU(d); *out = 4u + (unsigned)i; return SUCCESS; }
API nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t d, unsigned int *out) { GPU(d); *out = 8u >> i; return SUCCESS; }
API nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t d, unsigned int *out) { GPU(d); *out = 16; return SUCCESS; }

// The two answer differently, which they do not in truth, to tell them apart.
API nvmlDeviceGetDriverModel_v2(nvmlDevice_t d, unsigned int *current, unsigned int *pending) {
	GPU(d);
	if (i == 2) return NOT_SUPPORTED;
	*current = (unsigned)i; *pending = 2;
	return SUCCESS;
}
API nvmlDeviceGetDriverModel(nvmlDevice_t d, unsigned int *current, unsigned int *pending) {
	GPU(d);
	if (i == 2) return NOT_SUPPORTED;
	*current = 2; *pending = (unsigned)i;
	return SUCCESS;
}

API nvmlDeviceGetVirtualizationMode(nvmlDevice_t d, unsigned int *out) { GPU(d); *out = 1u + (unsigned)i; return SUCCESS; }
API nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned int *current, unsigned int *pending) {
	GPU(d);
	if (i == 2) return NOT_SUPPORTED;
	*current = i == 1; *pending = i == 0;
	return SUCCESS;
}
// It has no size: the caller's buffer must hold 64 bytes.
API nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t d, char *version) {
	GPU(d);
	return i == 1 ? NOT_SUPPORTED : put(version, 64, "580.159.0%d-%052d", i, 0);
}
API nvmlDeviceGetPersistenceMode(nvmlDevice_t d, unsigned int *out) { GPU(d); *out = i == 1; return SUCCESS; }
API nvmlDeviceGetPerformanceState(nvmlDevice_t d, unsigned int *out) { GPU(d); *out = i == 2 ? 32 : 8u - (unsigned)i; return SUCCESS; }
API nvmlDeviceGetPowerState(nvmlDevice_t d, unsigned int *out) { GPU(d); *out = 2u + (unsigned)i; return SUCCESS; }

// LINK: GPU 0 has four links of which 1 is down, GPU 1 has no NVLink, GPU 2 has
// as many as nvml.h knows.
#define LINK(d) \
	GPU(d); \
	if (i == 1) return NOT_SUPPORTED; \
	if (link >= (i == 0 ? 4 : 36)) return INVALID_ARGUMENT

API nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned int link, unsigned int *out) { LINK(d); *out = i != 0 || link != 1; return SUCCESS; }
API nvmlDeviceGetNvLinkVersion(nvmlDevice_t d, unsigned int link, unsigned int *out) { LINK(d); *out = 4 + link % 5; return SUCCESS; }
API nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t d, unsigned int link, unsigned int *out) {
	LINK(d);
	static const unsigned int types[] = {0, 1, 2, 0xff};
	*out = types[link % 4];
	return SUCCESS;
}
API nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, unsigned int link, nvmlPciInfo_t *p) {
	LINK(d);
	if (link == 3) return NOT_SUPPORTED;
	fill(p, 0, 0xA0 + link, 0x22A310DE, link);
	return SUCCESS;
}

#define PAIR(d1, d2) \
	GPU(d1); \
	int j = index_of(d2); \
	if (j < 0 || i == j) return INVALID_ARGUMENT; \
	if (gpus[j].lost) return GPU_IS_LOST

// Never the same both ways, and never the same for two neighbouring abilities.
API nvmlDeviceGetP2PStatus(nvmlDevice_t d1, nvmlDevice_t d2, unsigned int ability, unsigned int *out) {
	PAIR(d1, d2);
	if (ability > 4) return INVALID_ARGUMENT;
	*out = (unsigned)(3 * i + 2 * j) % 7u;
	*out = (*out + ability) % 7u;
	return SUCCESS;
}
API nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t d1, nvmlDevice_t d2, unsigned int *out) {
	PAIR(d1, d2);
	*out = 10u * (unsigned)(i + j + 2);
	return SUCCESS;
}

#endif
