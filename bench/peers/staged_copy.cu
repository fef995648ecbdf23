// SPDX-License-Identifier: Apache-2.0
//
// The C++ twin of the library's staged copy on one GPU: the same driver calls in
// the same order, the same chunk, the same slots. It measures what the library
// costs beside the calls themselves. It speaks the protocol of README.md:
//
//	nvcc -O2 -std=c++17 -o staged_copy staged_copy.cu -lcuda
//	staged_copy [GPU]
//
// Method "staged" makes every driver call that the library makes for a copy:
// also those by which it leaves the thread's context as it found it, looks
// whether a stream is captured, and relaxes the capture checks of its wait.
// Method "bare" makes only those without which the copy would not work.
//
// There is no device code: a C++17 compiler that finds cuda.h does as well.

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void check(CUresult r, const char *call) {
    if (r == CUDA_SUCCESS) return;
    const char *name = nullptr;
    cuGetErrorName(r, &name);
    throw std::runtime_error(std::string(call) + ": " + (name ? name : "unknown error"));
}
#define CHECK(call) check((call), #call)

// Fills destinations. No byte of the data has this value.
constexpr unsigned char kPoison = 0xff;
constexpr std::chrono::milliseconds kWarm{3};

// Small copies rotate through this many bytes, beyond a GPU's cache.
constexpr size_t kRotate = size_t(64) << 20;

// What arrives is read back through pinned memory of this size.
constexpr size_t kCheck = size_t(64) << 20;

struct Times {
    std::vector<double> total, enqueue;
};

class Copier {
  public:
    explicit Copier(int gpu) {
        CHECK(cuInit(0));
        CHECK(cuDeviceGet(&device_, gpu));
        CHECK(cuDevicePrimaryCtxRetain(&ctx_, device_));
        Current current(ctx_);
        for (CUstream *s : {&src_stream_, &dst_stream_, &out_, &in_}) CHECK(cuStreamCreate(s, CU_STREAM_NON_BLOCKING));
        for (CUevent *e : {&src_fence_, &dst_fence_, &src_end_, &end_}) CHECK(cuEventCreate(e, CU_EVENT_DISABLE_TIMING));
        CHECK(cuMemHostAlloc(&check_, kCheck, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    }

    std::string about() {
        char name[256] = "";
        int version = 0;
        CHECK(cuDeviceGetName(name, sizeof name, device_));
        CHECK(cuDriverGetVersion(&version));
        return std::string(name) + ", CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
    }

    // Makes room for copies of n bytes in pieces of chunk. Not timed.
    void prepare(size_t n, size_t chunk, int slots) {
        Current current(ctx_);
        if (n > span_) {
            if (src_) CHECK(cuMemFree(src_));
            if (dst_) CHECK(cuMemFree(dst_));
            span_ = std::max((kRotate + n - 1) / n * n, n);
            CHECK(cuMemAlloc(&src_, span_));
            CHECK(cuMemAlloc(&dst_, span_));
            fill();
            at_ = 0;
        }
        size_t need = std::min(chunk, n) * size_t(slots);
        if (need > host_size_) {
            if (host_) CHECK(cuMemFreeHost(host_));
            CHECK(cuMemHostAlloc(&host_, need, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
            host_size_ = need;
        }
        while (landed_.size() < size_t(slots)) {
            CUevent e;
            CHECK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
            landed_.push_back(e);
            CHECK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
            freed_.push_back(e);
        }
    }

    // Copies count times, each another part of the buffers, and counts the bytes
    // that are wrong then.
    Times run(bool bare, size_t n, size_t chunk, int slots, int count, uint64_t *wrong) {
        count = int(std::min<size_t>(size_t(count), span_ / n));
        if (at_ + size_t(count) * n > span_) at_ = 0;
        // Another program had the GPU and the processor before: the first copies pay
        // for that.
        Times warm;
        for (auto until = std::chrono::steady_clock::now() + kWarm; warm.total.empty() || std::chrono::steady_clock::now() < until;)
            once(false, at_, n, chunk, slots, &warm);
        {
            Current current(ctx_);
            CHECK(cuMemsetD8Async(dst_ + at_, kPoison, size_t(count) * n, dst_stream_));
            CHECK(cuStreamSynchronize(dst_stream_));
        }
        Times t;
        t.total.reserve(size_t(count));
        t.enqueue.reserve(size_t(count));
        if (bare) {
            Current current(ctx_);
            for (int i = 0; i < count; i++) once(true, at_ + size_t(i) * n, n, chunk, slots, &t);
        } else {
            for (int i = 0; i < count; i++) once(false, at_ + size_t(i) * n, n, chunk, slots, &t);
        }
        *wrong = verify(at_, size_t(count) * n);
        at_ += size_t(count) * n;
        return t;
    }

  private:
    // Makes a context current on this thread as long as it lives.
    struct Current {
        explicit Current(CUcontext c) { CHECK(cuCtxPushCurrent(c)); }
        ~Current() {
            CUcontext was;
            cuCtxPopCurrent(&was);
        }
    };

    void once(bool bare, size_t off, size_t n, size_t chunk, int slots, Times *t) {
        using Clock = std::chrono::steady_clock;
        const auto began = Clock::now();
        if (!bare) {
            CUcontext was;
            CUstreamCaptureStatus status;
            CHECK(cuCtxGetCurrent(&was));
            CHECK(cuCtxPushCurrent(ctx_));
            CHECK(cuStreamIsCapturing(dst_stream_, &status));
            CHECK(cuStreamIsCapturing(src_stream_, &status));
        }
        if (n <= chunk) {
            inline_copy(off, n);
        } else {
            piped_copy(bare, off, n, chunk, slots);
        }
        if (!bare) {
            CUcontext was;
            CHECK(cuCtxPopCurrent(&was));
        }
        const auto enqueued = Clock::now();
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
        if (!bare) CHECK(cuThreadExchangeStreamCaptureMode(&mode));
        CUresult r;
        while ((r = cuEventQuery(end_)) == CUDA_ERROR_NOT_READY) {
        }
        check(r, "cuEventQuery");
        if (!bare) CHECK(cuThreadExchangeStreamCaptureMode(&mode));
        const auto done = Clock::now();
        t->enqueue.push_back(std::chrono::duration<double>(enqueued - began).count());
        t->total.push_back(std::chrono::duration<double>(done - began).count());
    }

    // One piece: on the streams of the source and the destination themselves.
    void inline_copy(size_t off, size_t n) {
        CHECK(cuMemcpyDtoHAsync(host_, src_ + off, n, src_stream_));
        CHECK(cuEventRecord(landed_[0], src_stream_));
        CHECK(cuStreamWaitEvent(dst_stream_, landed_[0], 0));
        CHECK(cuMemcpyHtoDAsync(dst_ + off, host_, n, dst_stream_));
        CHECK(cuEventRecord(end_, dst_stream_));
    }

    // Pieces through a ring of slots, on a lane each way that is fenced against
    // the streams of the source and the destination.
    void piped_copy(bool bare, size_t off, size_t n, size_t chunk, int slots) {
        if (!bare) {
            CHECK(cuEventRecord(src_fence_, src_stream_));
            CHECK(cuStreamWaitEvent(out_, src_fence_, 0));
            CHECK(cuEventRecord(dst_fence_, dst_stream_));
            CHECK(cuStreamWaitEvent(in_, dst_fence_, 0));
        }
        const size_t pieces = (n + chunk - 1) / chunk;
        for (size_t i = 0; i < pieces; i++) {
            const size_t lo = i * chunk, k = std::min(chunk, n - lo), slot = i % size_t(slots);
            char *host = static_cast<char *>(host_) + slot * chunk;
            if (i >= size_t(slots)) CHECK(cuStreamWaitEvent(out_, freed_[slot], 0));
            CHECK(cuMemcpyDtoHAsync(host, src_ + off + lo, k, out_));
            CHECK(cuEventRecord(landed_[slot], out_));
            CHECK(cuStreamWaitEvent(in_, landed_[slot], 0));
            CHECK(cuMemcpyHtoDAsync(dst_ + off + lo, host, k, in_));
            if (i + size_t(slots) < pieces) CHECK(cuEventRecord(freed_[slot], in_));
        }
        if (!bare) {
            CHECK(cuEventRecord(src_end_, out_));
            CHECK(cuStreamWaitEvent(src_stream_, src_end_, 0));
        }
        CHECK(cuEventRecord(end_, in_));
        if (!bare) CHECK(cuStreamWaitEvent(dst_stream_, end_, 0));
    }

    // Random bytes (SplitMix64), none of them the poison, to the source.
    void fill() {
        want_.resize(span_);
        uint64_t state = 7;
        for (size_t i = 0; i < span_; i += 8) {
            uint64_t z = (state += 0x9e3779b97f4a7c15);
            z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
            z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
            z ^= z >> 31;
            std::memcpy(&want_[i], &z, std::min<size_t>(8, span_ - i));
        }
        for (size_t i = 0; i < span_; i++) {
            if (want_[i] == kPoison) want_[i] = static_cast<unsigned char>((i & 0xff) >> 1);
        }
        CHECK(cuMemcpyHtoD(src_, want_.data(), span_));
        CHECK(cuCtxSynchronize());
    }

    uint64_t verify(size_t off, size_t n) {
        Current current(ctx_);
        uint64_t wrong = 0;
        for (size_t end = off + n; off < end; off += kCheck) {
            const size_t k = std::min(kCheck, end - off);
            std::memset(check_, kPoison, k);
            CHECK(cuMemcpyDtoHAsync(check_, dst_ + off, k, dst_stream_));
            CHECK(cuStreamSynchronize(dst_stream_));
            if (std::memcmp(check_, &want_[off], k) == 0) continue;
            const unsigned char *got = static_cast<unsigned char *>(check_);
            for (size_t i = 0; i < k; i++) wrong += got[i] != want_[off + i];
        }
        return wrong;
    }

    CUdevice device_ = 0;
    CUcontext ctx_ = nullptr;
    CUstream src_stream_ = nullptr, dst_stream_ = nullptr; // order the buffers
    CUstream out_ = nullptr, in_ = nullptr;                // the lanes
    CUevent src_fence_ = nullptr, dst_fence_ = nullptr, src_end_ = nullptr, end_ = nullptr;
    std::vector<CUevent> landed_, freed_; // by slot
    CUdeviceptr src_ = 0, dst_ = 0;
    void *host_ = nullptr, *check_ = nullptr;
    size_t host_size_ = 0, span_ = 0, at_ = 0;
    std::vector<unsigned char> want_;
};

void print_list(const char *name, const std::vector<double> &v) {
    std::printf("\"%s\":[", name);
    for (size_t i = 0; i < v.size(); i++) std::printf("%s%.9g", i ? "," : "", v[i]);
    std::printf("]");
}

// Text for a JSON string: what this program says has no control characters.
std::string quoted(const std::string &s) {
    std::string out = "\"";
    for (char c : s) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out + "\"";
}

} // namespace

int main(int argc, char **argv) {
    try {
        Copier copier(argc > 1 ? std::atoi(argv[1]) : 0);
        std::printf("{\"peer\":\"cpp\",\"version\":1,\"about\":%s,\"methods\":[{\"name\":\"staged\"},{\"name\":\"bare\"}]}\n",
                    quoted(copier.about()).c_str());
        std::fflush(stdout);
        char line[256];
        while (std::fgets(line, sizeof line, stdin)) {
            char method[32];
            uint64_t n = 0, chunk = 0;
            int slots = 0, count = 0;
            if (std::sscanf(line, "%31s %" SCNu64 " %" SCNu64 " %d %d", method, &n, &chunk, &slots, &count) != 5 || n < 1 || chunk < 1 ||
                slots < 2 || count < 1 || (std::strcmp(method, "staged") != 0 && std::strcmp(method, "bare") != 0)) {
                std::printf("{\"error\":\"not a request: METHOD BYTES CHUNK SLOTS COUNT\"}\n");
                std::fflush(stdout);
                continue;
            }
            uint64_t wrong = 0;
            copier.prepare(size_t(n), size_t(chunk), slots);
            const Times t = copier.run(std::strcmp(method, "bare") == 0, size_t(n), size_t(chunk), slots, count, &wrong);
            std::printf("{");
            print_list("seconds", t.total);
            std::printf(",");
            print_list("enqueue_seconds", t.enqueue);
            std::printf(",\"wrong\":%" PRIu64 "}\n", wrong);
            std::fflush(stdout);
        }
    } catch (const std::exception &e) {
        std::printf("{\"error\":%s}\n", quoted(e.what()).c_str());
        std::fflush(stdout);
        return 1;
    }
    return 0;
}
