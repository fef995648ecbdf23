// SPDX-License-Identifier: Apache-2.0
//
// NCCL's collectives over all GPUs of the host from one process and one thread:
// ncclCommInitAll and group calls.
//
//     nvcc -O2 -std=c++17 -gencode arch=compute_80,code=compute_80 -I NCCL/include -o nccl_bench nccl_bench.cu -ldl
//     nccl_bench --lib NCCL/lib/libnccl.so.2 --ops all_reduce,all_gather --sizes 8,1048576 [--protos default,LL] [--gpus N] [--ms 25]
//
// It writes a line of JSON about itself, and then one for each operation, size
// and protocol. Which transport NCCL takes is its environment's to say, and what
// it took is in the log of NCCL_DEBUG=INFO.
//
// Three times are taken of each: from the call until a poll finds all GPUs done,
// each call waited for (seconds, the median); of a train of calls, waited for at
// its end, as nccl-tests does (train_seconds); and by the GPUs' events, with the
// streams held back until all is enqueued (event_seconds, the median of the
// slowest GPU's). Bytes are the longer of a rank's buffers. Elements are whole
// numbers in float32, so every order of a sum gives the same bits. The
// destination is filled with NaN before, and every element compared after each of
// the three.

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace {

enum Op { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kSend, kSendRecv, kOps };
const char *const kNames[kOps] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "send", "sendrecv"};

// What a rank's element i is: a whole number of which 2^13 sum up exactly.
__host__ __device__ inline float value(int rank, uint64_t i) { return float((i * 31 + uint64_t(rank) * 17) % 1021); }

__global__ void fill(float *p, uint64_t n, int rank) {
    const uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) p[i] = value(rank, i);
}

// What element i of a rank's result is. share is the elements of a rank's part.
__device__ inline float expected(int op, int rank, int ranks, uint64_t i, uint64_t share) {
    float sum = 0;
    switch (op) {
    case kAllReduce:
        for (int q = 0; q < ranks; q++) sum += value(q, i);
        return sum;
    case kReduceScatter:
        for (int q = 0; q < ranks; q++) sum += value(q, uint64_t(rank) * share + i);
        return sum;
    case kAllGather:
        return value(int(i / share), i % share);
    case kSendRecv:
        return value((rank + ranks - 1) % ranks, i);
    }
    return value(0, i); // broadcast, and what rank 0 sends
}

__global__ void compare(const float *p, uint64_t n, int op, int rank, int ranks, uint64_t share, unsigned long long *wrong) {
    const uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    unsigned long long bad = 0;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
        if (!(p[i] == expected(op, rank, ranks, i, share))) bad++; // NaN is wrong too
    }
    if (bad > 0) atomicAdd(wrong, bad);
}

// Holds a stream back until the host has written the epoch, two seconds at most.
__global__ void hold(const volatile unsigned *flag, unsigned epoch) {
    unsigned long long began, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(began));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (*flag != epoch && now - began < 2000000000ull);
}

void check(cudaError_t r, const char *what) {
    if (r != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(r));
}
#define CHECK(call) check(call, #call)

// The library's functions, looked up at run time: so the build needs its header
// alone.
struct Nccl {
    decltype(&ncclGetVersion) GetVersion;
    decltype(&ncclGetErrorString) GetErrorString;
    decltype(&ncclCommInitAll) CommInitAll;
    decltype(&ncclCommDestroy) CommDestroy;
    decltype(&ncclGroupStart) GroupStart;
    decltype(&ncclGroupEnd) GroupEnd;
    decltype(&ncclAllReduce) AllReduce;
    decltype(&ncclAllGather) AllGather;
    decltype(&ncclReduceScatter) ReduceScatter;
    decltype(&ncclBroadcast) Broadcast;
    decltype(&ncclSend) Send;
    decltype(&ncclRecv) Recv;

    explicit Nccl(const char *path) {
        void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!lib) throw std::runtime_error(std::string("no NCCL: ") + dlerror());
        const auto find = [lib](auto &f, const char *name) {
            f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(lib, name));
            if (!f) throw std::runtime_error(std::string("NCCL has no ") + name);
        };
        find(GetVersion, "ncclGetVersion");
        find(GetErrorString, "ncclGetErrorString");
        find(CommInitAll, "ncclCommInitAll");
        find(CommDestroy, "ncclCommDestroy");
        find(GroupStart, "ncclGroupStart");
        find(GroupEnd, "ncclGroupEnd");
        find(AllReduce, "ncclAllReduce");
        find(AllGather, "ncclAllGather");
        find(ReduceScatter, "ncclReduceScatter");
        find(Broadcast, "ncclBroadcast");
        find(Send, "ncclSend");
        find(Recv, "ncclRecv");
    }

    void ok(ncclResult_t r, const char *what) const {
        if (r != ncclSuccess) throw std::runtime_error(std::string(what) + ": " + GetErrorString(r));
    }
};

double quantile(std::vector<double> v, double q) {
    if (v.empty()) return 0;
    std::sort(v.begin(), v.end());
    const double at = q * double(v.size() - 1);
    const size_t i = size_t(at);
    return i + 1 >= v.size() ? v.back() : v[i] + (v[i + 1] - v[i]) * (at - double(i));
}

using Clock = std::chrono::steady_clock;

double since(Clock::time_point began) { return std::chrono::duration<double>(Clock::now() - began).count(); }

struct Rank {
    int gpu = 0;
    float *src = nullptr, *dst = nullptr;
    unsigned long long *wrong = nullptr;
    cudaStream_t stream = nullptr;
    cudaEvent_t start = nullptr, end = nullptr;
    ncclComm_t comm = nullptr;
};

class Bench {
  public:
    Bench(const Nccl &nccl, int gpus, uint64_t most) : nccl_(nccl), ranks_(size_t(gpus)) {
        void *flag = nullptr;
        CHECK(cudaHostAlloc(&flag, sizeof *flag_, cudaHostAllocMapped | cudaHostAllocPortable));
        flag_ = static_cast<volatile unsigned *>(flag);
        *flag_ = 0;
        for (int g = 0; g < gpus; g++) {
            Rank &r = ranks_[size_t(g)];
            r.gpu = g;
            CHECK(cudaSetDevice(g));
            CHECK(cudaMalloc(reinterpret_cast<void **>(&r.src), most));
            CHECK(cudaMalloc(reinterpret_cast<void **>(&r.dst), most));
            CHECK(cudaMalloc(reinterpret_cast<void **>(&r.wrong), sizeof *r.wrong));
            CHECK(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking));
            CHECK(cudaEventCreate(&r.start));
            CHECK(cudaEventCreate(&r.end));
            fill<<<512, 256, 0, r.stream>>>(r.src, most / sizeof(float), g);
            CHECK(cudaGetLastError());
            // Modules are loaded when first used, which must not be behind a held stream.
            CHECK(cudaMemsetAsync(r.wrong, 0, sizeof *r.wrong, r.stream));
            compare<<<1, 32, 0, r.stream>>>(r.src, 0, kBroadcast, g, gpus, 1, r.wrong);
            CHECK(cudaGetLastError());
            hold<<<1, 1, 0, r.stream>>>(device_flag(), 0);
            CHECK(cudaGetLastError());
            CHECK(cudaStreamSynchronize(r.stream));
        }
    }

    // Makes communicators, which read NCCL_PROTO anew.
    void connect() {
        std::vector<ncclComm_t> comms(ranks_.size());
        std::vector<int> gpus;
        for (const Rank &r : ranks_) gpus.push_back(r.gpu);
        nccl_.ok(nccl_.CommInitAll(comms.data(), int(gpus.size()), gpus.data()), "ncclCommInitAll");
        for (size_t i = 0; i < comms.size(); i++) ranks_[i].comm = comms[i];
    }

    void disconnect() {
        for (Rank &r : ranks_) {
            nccl_.ok(nccl_.CommDestroy(r.comm), "ncclCommDestroy");
            r.comm = nullptr;
        }
    }

    // Measures and prints one line. size is rounded down to whole shares.
    void measure(Op op, uint64_t size, const char *proto, double seconds) {
        const uint64_t n = ranks_.size();
        uint64_t unit = sizeof(float);
        if (op == kAllGather || op == kReduceScatter) {
            unit *= n;
            if (size >= 16 * n) unit = 16 * n;
        }
        const uint64_t bytes = std::max<uint64_t>(size / unit, 1) * unit;
        op_ = op;
        count_ = bytes / sizeof(float);
        share_ = op == kAllGather || op == kReduceScatter ? count_ / n : count_;
        wrong_ = 0;

        poison();
        for (int i = 0; i < 3; i++) { // the first connects
            enqueue();
            wait();
        }
        verify();

        std::vector<double> alone, events;
        poison();
        for (const auto began = Clock::now(); alone.size() < 3 || (alone.size() < 100 && since(began) < seconds);) {
            const auto at = Clock::now();
            enqueue();
            wait();
            alone.push_back(since(at));
        }
        verify();

        const int train = std::max(3, std::min(int(seconds / quantile(alone, 0.5)), 100));
        poison();
        const auto began = Clock::now();
        for (int i = 0; i < train; i++) enqueue();
        wait();
        const double each = since(began) / train;
        verify();

        poison();
        for (const auto from = Clock::now(); events.size() < 3 || (events.size() < 30 && since(from) < seconds);) {
            events.push_back(held());
        }
        verify();

        std::printf("{\"op\":\"%s\",\"bytes\":%" PRIu64 ",\"ranks\":%d,\"proto\":\"%s\",\"seconds\":%.9g,\"p5_seconds\":%.9g,\"p95_seconds\":%.9g,"
                    "\"count\":%zu,\"train_seconds\":%.9g,\"train_count\":%d,\"event_seconds\":%.9g,\"wrong\":%" PRIu64 "}\n",
                    kNames[op], bytes, int(n), proto, quantile(alone, 0.5), quantile(alone, 0.05), quantile(alone, 0.95), alone.size(), each, train,
                    quantile(events, 0.5), wrong_ * sizeof(float));
        std::fflush(stdout);
    }

  private:
    const volatile unsigned *device_flag() {
        void *p = nullptr;
        CHECK(cudaHostGetDevicePointer(&p, const_cast<unsigned *>(flag_), 0));
        return static_cast<const volatile unsigned *>(p);
    }

    void enqueue() {
        nccl_.ok(nccl_.GroupStart(), "ncclGroupStart");
        const int n = int(ranks_.size());
        for (int i = 0; i < n; i++) {
            const Rank &r = ranks_[size_t(i)];
            switch (op_) {
            case kAllReduce:
                nccl_.ok(nccl_.AllReduce(r.src, r.dst, count_, ncclFloat32, ncclSum, r.comm, r.stream), "ncclAllReduce");
                break;
            case kAllGather:
                nccl_.ok(nccl_.AllGather(r.src, r.dst, share_, ncclFloat32, r.comm, r.stream), "ncclAllGather");
                break;
            case kReduceScatter:
                nccl_.ok(nccl_.ReduceScatter(r.src, r.dst, share_, ncclFloat32, ncclSum, r.comm, r.stream), "ncclReduceScatter");
                break;
            case kBroadcast:
                nccl_.ok(nccl_.Broadcast(r.src, r.dst, count_, ncclFloat32, 0, r.comm, r.stream), "ncclBroadcast");
                break;
            case kSend:
                if (i == 0) nccl_.ok(nccl_.Send(r.src, count_, ncclFloat32, 1, r.comm, r.stream), "ncclSend");
                if (i == 1) nccl_.ok(nccl_.Recv(r.dst, count_, ncclFloat32, 0, r.comm, r.stream), "ncclRecv");
                break;
            default:
                nccl_.ok(nccl_.Send(r.src, count_, ncclFloat32, (i + 1) % n, r.comm, r.stream), "ncclSend");
                nccl_.ok(nccl_.Recv(r.dst, count_, ncclFloat32, (i + n - 1) % n, r.comm, r.stream), "ncclRecv");
            }
        }
        nccl_.ok(nccl_.GroupEnd(), "ncclGroupEnd");
    }

    // Polls until all streams are done. What takes half a minute has hung.
    void wait() {
        const auto began = Clock::now();
        for (const Rank &r : ranks_) {
            cudaError_t e;
            while ((e = cudaStreamQuery(r.stream)) == cudaErrorNotReady) {
                if (since(began) > 30) throw std::runtime_error(std::string(kNames[op_]) + " does not end");
            }
            check(e, kNames[op_]);
        }
    }

    // One call by the GPUs' events, of the slowest GPU.
    double held() {
        epoch_++;
        for (Rank &r : ranks_) {
            CHECK(cudaSetDevice(r.gpu));
            hold<<<1, 1, 0, r.stream>>>(device_flag(), epoch_);
            CHECK(cudaGetLastError());
            CHECK(cudaEventRecord(r.start, r.stream));
        }
        enqueue();
        for (Rank &r : ranks_) {
            CHECK(cudaSetDevice(r.gpu));
            CHECK(cudaEventRecord(r.end, r.stream));
        }
        *flag_ = epoch_;
        wait();
        double most = 0;
        for (Rank &r : ranks_) {
            float ms = 0;
            CHECK(cudaEventElapsedTime(&ms, r.start, r.end));
            most = std::max(most, double(ms) / 1e3);
        }
        return most;
    }

    uint64_t result_elements(int rank) const {
        if (op_ == kReduceScatter) return share_;
        if (op_ == kSend && rank != 1) return 0;
        return count_;
    }

    void poison() {
        for (Rank &r : ranks_) {
            CHECK(cudaSetDevice(r.gpu));
            CHECK(cudaMemsetAsync(r.dst, 0xff, count_ * sizeof(float), r.stream));
            CHECK(cudaStreamSynchronize(r.stream));
        }
    }

    void verify() {
        for (size_t i = 0; i < ranks_.size(); i++) {
            Rank &r = ranks_[i];
            CHECK(cudaSetDevice(r.gpu));
            CHECK(cudaMemsetAsync(r.wrong, 0, sizeof *r.wrong, r.stream));
            compare<<<512, 256, 0, r.stream>>>(r.dst, result_elements(int(i)), op_, int(i), int(ranks_.size()), share_, r.wrong);
            CHECK(cudaGetLastError());
            unsigned long long bad = 0;
            CHECK(cudaMemcpyAsync(&bad, r.wrong, sizeof bad, cudaMemcpyDeviceToHost, r.stream));
            CHECK(cudaStreamSynchronize(r.stream));
            wrong_ += bad;
        }
    }

    const Nccl &nccl_;
    std::vector<Rank> ranks_;
    volatile unsigned *flag_ = nullptr;
    unsigned epoch_ = 0;
    Op op_ = kAllReduce;
    uint64_t count_ = 0, share_ = 0, wrong_ = 0;
};

std::vector<std::string> split(const std::string &s) {
    std::vector<std::string> out;
    for (size_t at = 0; at <= s.size();) {
        const size_t end = std::min(s.find(',', at), s.size());
        if (end > at) out.push_back(s.substr(at, end - at));
        at = end + 1;
    }
    return out;
}

Op op_of(const std::string &name) {
    for (int i = 0; i < kOps; i++) {
        if (name == kNames[i]) return Op(i);
    }
    throw std::runtime_error("unknown operation " + name);
}

// Text for a JSON string.
std::string quoted(const std::string &s) {
    std::string out = "\"";
    for (char c : s) {
        if (c == '"' || c == '\\') out += '\\';
        out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    return out + "\"";
}

int run(int argc, char **argv) {
    std::string lib = "libnccl.so.2", ops = "all_reduce", sizes = "1048576", protos = "default";
    int gpus = 0;
    double ms = 25;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string flag = argv[i], v = argv[i + 1];
        if (flag == "--lib") lib = v;
        else if (flag == "--ops") ops = v;
        else if (flag == "--sizes") sizes = v;
        else if (flag == "--protos") protos = v;
        else if (flag == "--gpus") gpus = std::atoi(v.c_str());
        else if (flag == "--ms") ms = std::atof(v.c_str());
        else throw std::runtime_error("unknown flag " + flag);
    }
    int all = 0;
    CHECK(cudaGetDeviceCount(&all));
    if (gpus == 0) gpus = all;
    if (gpus < 2 || gpus > all) throw std::runtime_error("the host has " + std::to_string(all) + " GPUs: two at least");
    std::vector<Op> todo;
    for (const auto &name : split(ops)) todo.push_back(op_of(name));
    std::vector<uint64_t> bytes;
    uint64_t most = 4096;
    for (const auto &s : split(sizes)) {
        bytes.push_back(std::strtoull(s.c_str(), nullptr, 10));
        most = std::max(most, bytes.back());
    }
    const Nccl nccl(lib.c_str());
    int version = 0, driver = 0;
    nccl.ok(nccl.GetVersion(&version), "ncclGetVersion");
    CHECK(cudaDriverGetVersion(&driver));
    std::printf("{\"about\":\"one process\",\"nccl\":\"%d.%d.%d\",\"cuda\":\"%d.%d\",\"gpus\":%d}\n", version / 10000, version / 100 % 100, version % 100,
                driver / 1000, driver % 1000 / 10, gpus);
    std::fflush(stdout);
    Bench bench(nccl, gpus, most);
    for (const auto &proto : split(protos)) {
        if (proto == "default") unsetenv("NCCL_PROTO");
        else setenv("NCCL_PROTO", proto.c_str(), 1);
        bench.connect();
        for (Op op : todo) {
            for (uint64_t n : bytes) bench.measure(op, n, proto.c_str(), ms / 1e3);
        }
        bench.disconnect();
    }
    return 0;
}

} // namespace

int main(int argc, char **argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception &e) {
        std::printf("{\"error\":%s}\n", quoted(e.what()).c_str());
        std::fflush(stdout);
        _Exit(1); // what hangs on a GPU would hang the exit
    }
}
