// SPDX-License-Identifier: Apache-2.0

// What NVRTC knows without a header and clang does not. Included before every
// .cu when clang compiles it.

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(n) __attribute__((launch_bounds(n)))

#define GP_SREG(type, reg)                                                        \
	struct type {                                                                 \
		__declspec(property(get = get_x)) unsigned int x;                         \
		static inline __device__ __attribute__((always_inline)) unsigned int get_x() { \
			return __nvvm_read_ptx_sreg_##reg##_x();                              \
		}                                                                         \
	};                                                                            \
	extern const __device__ type

GP_SREG(gp_tid, tid) threadIdx;
GP_SREG(gp_ctaid, ctaid) blockIdx;
GP_SREG(gp_ntid, ntid) blockDim;
GP_SREG(gp_nctaid, nctaid) gridDim;
