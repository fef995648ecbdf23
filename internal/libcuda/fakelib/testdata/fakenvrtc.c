// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for NVRTC. Its "CUBIN" is an ELF magic, then the program's name,
// options and source as they arrived, one a line. It is compiled by tests.
//
// Source with "#error" in it does not compile; "#warning" leaves a log.
//
// Defines:
//   FAKE_MAJOR=n, FAKE_MINOR=n  the version (13.0)
//   FAKE_BUILTINS="file"        needs this library to be loadable by bare name
//   nvrtcX=somethingelse        a library that lacks nvrtcX

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef FAKE_MAJOR
#define FAKE_MAJOR 13
#endif
#ifndef FAKE_MINOR
#define FAKE_MINOR 0
#endif

enum { SUCCESS = 0, OUT_OF_MEMORY, CREATION_FAILURE, INVALID_INPUT, INVALID_PROGRAM, INVALID_OPTION, COMPILATION, BUILTIN_FAILURE };

struct program {
	unsigned magic;
	char *source, *name;
	char log[1024];
	char *cubin;
	size_t n;
};

#define MAGIC 0x6e767274u

static atomic_int live;
int fake_live(void) { return live; }

int nvrtcVersion(int *major, int *minor) {
	*major = FAKE_MAJOR;
	*minor = FAKE_MINOR;
	return SUCCESS;
}

const char *nvrtcGetErrorString(int code) {
	static const char *names[] = {"NVRTC_SUCCESS", "NVRTC_ERROR_OUT_OF_MEMORY", "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
		"NVRTC_ERROR_INVALID_INPUT", "NVRTC_ERROR_INVALID_PROGRAM", "NVRTC_ERROR_INVALID_OPTION",
		"NVRTC_ERROR_COMPILATION", "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE"};
	if (code < 0 || code > 7) return "NVRTC_ERROR unknown";
	return names[code];
}

static const int archs[] = {75, 80, 86, 89, 90, 100, 120};

int nvrtcGetNumSupportedArchs(int *n) {
	*n = sizeof archs / sizeof *archs;
	return SUCCESS;
}

int nvrtcGetSupportedArchs(int *list) {
	memcpy(list, archs, sizeof archs);
	return SUCCESS;
}

int nvrtcCreateProgram(struct program **out, const char *source, const char *name, int headers,
		const char *const *texts, const char *const *names) {
	if (!source || headers || texts || names) return INVALID_INPUT;
	struct program *p = calloc(1, sizeof *p);
	p->magic = MAGIC;
	p->source = strdup(source);
	p->name = strdup(name ? name : "default_program");
	live++;
	*out = p;
	return SUCCESS;
}

int nvrtcDestroyProgram(struct program **p) {
	if (!*p || (*p)->magic != MAGIC) return INVALID_PROGRAM;
	free((*p)->source);
	free((*p)->name);
	free((*p)->cubin);
	(*p)->magic = 0;
	free(*p);
	*p = NULL;
	live--;
	return SUCCESS;
}

int nvrtcCompileProgram(struct program *p, int n, const char *const *options) {
	if (!p || p->magic != MAGIC) return INVALID_PROGRAM;
	if (n < 0 || (n && !options)) return INVALID_INPUT;
	const char *arch = "";
	size_t room = strlen(p->source) + strlen(p->name) + 64;
	for (int i = 0; i < n; i++) {
		room += strlen(options[i]) + 1;
		if (!strncmp(options[i], "--gpu-architecture=", 19)) arch = options[i] + 19;
		if (options[i][0] != '-') {
			snprintf(p->log, sizeof p->log, "nvrtc: error: invalid value '%s'\n", options[i]);
			return INVALID_OPTION;
		}
	}
#ifdef FAKE_BUILTINS
	if (!dlopen(FAKE_BUILTINS, RTLD_NOW)) {
		snprintf(p->log, sizeof p->log, "nvrtc: error: failed to open %s.\n", FAKE_BUILTINS);
		return BUILTIN_FAILURE;
	}
#endif
	if (strstr(p->source, "#error")) {
		snprintf(p->log, sizeof p->log, "%s(1): error: #error directive\n\n1 error detected in the compilation of \"%s\".\n", p->name, p->name);
		return COMPILATION;
	}
	if (strstr(p->source, "#warning")) snprintf(p->log, sizeof p->log, "%s(1): warning: #warning directive\n", p->name);
	if (strncmp(arch, "sm_", 3)) return SUCCESS; // PTX only: no CUBIN
	p->cubin = malloc(room);
	size_t at = (size_t)snprintf(p->cubin, room, "\x7f" "ELF\n%s\n", p->name);
	for (int i = 0; i < n; i++) at += (size_t)snprintf(p->cubin + at, room - at, "%s\n", options[i]);
	at += (size_t)snprintf(p->cubin + at, room - at, "%s", p->source);
	p->n = at;
	return SUCCESS;
}

int nvrtcGetProgramLogSize(struct program *p, size_t *n) {
	if (!p || p->magic != MAGIC) return INVALID_PROGRAM;
	*n = strlen(p->log) + 1;
	return SUCCESS;
}

int nvrtcGetProgramLog(struct program *p, char *log) {
	if (!p || p->magic != MAGIC) return INVALID_PROGRAM;
	strcpy(log, p->log);
	return SUCCESS;
}

int nvrtcGetCUBINSize(struct program *p, size_t *n) {
	if (!p || p->magic != MAGIC) return INVALID_PROGRAM;
	*n = p->n;
	return SUCCESS;
}

int nvrtcGetCUBIN(struct program *p, char *cubin) {
	if (!p || p->magic != MAGIC || !p->cubin) return INVALID_PROGRAM;
	memcpy(cubin, p->cubin, p->n);
	return SUCCESS;
}
