// What a call costs with the allocators that others use, on the work files that gpu_bench makes (benches/gpu/gpu_bench.rs says
// what is in them), in rows of the same shape. benches/gpu.sh builds and runs it.
//   peers DIR async|torch|LIBRARY|LIBRARY:unmanaged [quick]
// Built with -DWITH_TORCH it has PyTorch's native allocator; cudaMallocAsync is always there. LIBRARY is our own C library, by
// its path, through the pair of functions that PyTorch would call; its streams are declared permanent, or may end.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#ifdef WITH_TORCH
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace fs = std::filesystem;

static void must(cudaError_t code, const char* what) {
    if (code == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
    std::exit(2);
}

struct Op {
    uint32_t slot;
    uint16_t stream, zero;
    uint64_t bytes;
};
static_assert(sizeof(Op) == 16);

struct Allocator {
    virtual ~Allocator() = default;
    virtual const char* name() const = 0;
    virtual void* take(size_t bytes, cudaStream_t on) = 0;
    virtual void give(void* at, cudaStream_t on) = 0;
    virtual void empty() = 0;
    // A stream that will be used; whether it has to stay for the life of the process.
    virtual bool meets(cudaStream_t) { return false; }
};

// cudaMallocAsync with a pool that keeps everything.
struct Async : Allocator {
    cudaMemPool_t pool{};
    Async() {
        must(cudaDeviceGetDefaultMemPool(&pool, 0), "the default pool");
        uint64_t all = UINT64_MAX;
        must(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "keep everything");
    }
    const char* name() const override { return "cudaMallocAsync"; }
    void* take(size_t bytes, cudaStream_t on) override {
        void* at = nullptr;
        must(cudaMallocAsync(&at, bytes, on), "cudaMallocAsync");
        return at;
    }
    void give(void* at, cudaStream_t on) override { must(cudaFreeAsync(at, on), "cudaFreeAsync"); }
    void empty() override { must(cudaMemPoolTrimTo(pool, 0), "trim"); }
};

// Our C library, opened.
struct Plug : Allocator {
    bool unmanaged;
    uint32_t number = 0;
    void* (*alloc)(size_t, int, cudaStream_t);
    void (*free)(void*, size_t, int, cudaStream_t);
    void (*empty_cache)();
    int (*permanent)(uint32_t, cudaStream_t);
    template <class F>
    static void find(void* library, const char* name, F& to) {
        to = reinterpret_cast<F>(dlsym(library, name));
        if (!to) {
            std::fprintf(stderr, "%s: %s\n", name, dlerror());
            std::exit(2);
        }
    }
    Plug(const char* path, bool unmanaged) : unmanaged(unmanaged) {
        void* library = dlopen(path, RTLD_NOW);
        if (!library) {
            std::fprintf(stderr, "%s\n", dlerror());
            std::exit(2);
        }
        int (*allocator)(int, const char*, uint32_t*);
        find(library, "millpond_torch_allocator", allocator);
        find(library, "millpond_torch_alloc", alloc);
        find(library, "millpond_torch_free", free);
        find(library, "millpond_torch_empty_cache", empty_cache);
        find(library, "millpond_declare_permanent", permanent);
        if (allocator(0, "", &number) != 0) {
            std::fprintf(stderr, "no allocator\n");
            std::exit(2);
        }
    }
    const char* name() const override { return unmanaged ? "millpond C pair, unmanaged streams" : "millpond C pair"; }
    void* take(size_t bytes, cudaStream_t on) override { return alloc(bytes, 0, on); }
    void give(void* at, cudaStream_t on) override { free(at, 0, 0, on); }
    void empty() override { empty_cache(); }
    bool meets(cudaStream_t stream) override {
        if (!unmanaged && permanent(number, stream) != 0) std::exit(2);
        return !unmanaged;
    }
};

#ifdef WITH_TORCH
struct Torch : Allocator {
    Torch() { c10::cuda::CUDACachingAllocator::init(1); }
    const char* name() const override { return "PyTorch native"; }
    void* take(size_t bytes, cudaStream_t on) override {
        return c10::cuda::CUDACachingAllocator::get()->raw_alloc_with_stream(bytes, on);
    }
    void give(void* at, cudaStream_t) override { c10::cuda::CUDACachingAllocator::get()->raw_delete(at); }
    void empty() override { c10::cuda::CUDACachingAllocator::emptyCache(); }
};
#endif

static double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static std::vector<Op> load(const fs::path& path) {
    std::vector<Op> ops(fs::file_size(path) / sizeof(Op));
    std::ifstream file(path, std::ios::binary);
    if (!file.read(reinterpret_cast<char*>(ops.data()), static_cast<std::streamsize>(ops.size() * sizeof(Op)))) {
        std::fprintf(stderr, "%s cannot be read\n", path.c_str());
        std::exit(2);
    }
    return ops;
}

static std::vector<fs::path> files(const char* dir, const char* extension) {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(dir))
        if (entry.path().extension() == extension) found.push_back(entry.path());
    std::sort(found.begin(), found.end());
    return found;
}

// Slots and streams of one thread's own.
struct Worker {
    Allocator& from;
    std::vector<cudaStream_t> streams;
    std::vector<void*> slots;
    bool stay = false;
    Worker(Allocator& from, const std::vector<Op>& ops, int count) : from(from), streams(count) {
        uint32_t most = 0;
        for (const Op& op : ops) most = std::max(most, op.slot + 1);
        slots.resize(most);
        for (auto& s : streams) {
            must(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "a stream");
            stay |= from.meets(s);
        }
    }
    ~Worker() {
        for (auto& s : streams) {
            must(cudaStreamSynchronize(s), "synchronise");
            if (!stay) must(cudaStreamDestroy(s), "destroy");
        }
    }
    void act(const Op& op) {
        if (op.bytes)
            slots[op.slot] = from.take(op.bytes, streams[op.stream]);
        else
            from.give(std::exchange(slots[op.slot], nullptr), streams[op.stream]);
    }
    void pass(const std::vector<Op>& ops) {
        for (const Op& op : ops) act(op);
    }
    // A thousand operations from one on, around the end; where it got to. Slots hold what is live, so that stopping anywhere
    // leaks nothing.
    size_t piece(const std::vector<Op>& ops, size_t at) {
        size_t end = std::min(at + 1000, ops.size());
        for (; at < end; at++) act(ops[at]);
        return end == ops.size() ? 0 : end;
    }
    void free_all() {
        for (void*& at : slots)
            if (void* was = std::exchange(at, nullptr)) from.give(was, streams[0]);
    }
};

static size_t free_bytes() {
    size_t free = 0, total = 0;
    must(cudaMemGetInfo(&free, &total), "memory info");
    return free;
}

static void row(Allocator& from, const fs::path& path, bool quick) {
    auto ops = load(path);
    must(cudaDeviceSynchronize(), "synchronise");
    from.empty();
    size_t before = free_bytes();
    Worker worker(from, ops, 8);
    worker.pass(ops);
    size_t after = free_bytes();
    must(cudaDeviceSynchronize(), "synchronise");
    std::vector<double> times;
    for (int k = 0; k < (quick ? 3 : 7); k++) {
        double start = seconds();
        worker.pass(ops);
        times.push_back((seconds() - start) * 1e9 / static_cast<double>(ops.size()));
        must(cudaDeviceSynchronize(), "synchronise");
    }
    std::sort(times.begin(), times.end());
    std::vector<double> each;
    each.reserve(ops.size());
    for (const Op& op : ops) {
        double start = seconds();
        worker.act(op);
        each.push_back((seconds() - start) * 1e9);
    }
    std::sort(each.begin(), each.end());
    auto at = [&](double share) { return each[std::min(each.size() - 1, static_cast<size_t>(share * static_cast<double>(each.size())))]; };
    std::printf("%s\t%s\t%.1f\t%.0f\t%.0f\t%.0f\t%zu\n", path.stem().c_str(), from.name(), times[times.size() / 2], at(0.5), at(0.99),
                each.back(), before > after ? (before - after) >> 20 : 0);
    std::fflush(stdout);
}

// Threads with a stream each, all at once, for a time that is long beside the start of a thread; each judged by its own clock.
static void threads(Allocator& from, const char* dir, bool quick) {
    std::vector<std::vector<Op>> parts;
    for (const auto& path : files(dir, ".part")) parts.push_back(load(path));
    for (int count : {1, 2, 4, 8, 16}) {
        std::barrier gate(count + 1);
        std::atomic<bool> stop{false};
        std::vector<std::thread> running;
        std::vector<double> rates(count);
        for (int t = 0; t < count; t++) {
            running.emplace_back([&, t] {
                must(cudaSetDevice(0), "the device");
                const auto& ops = parts[t];
                Worker worker(from, ops, 1);
                // Fills the caches: the whole work once, or as much of it as a second allows.
                size_t at = 0;
                double start = seconds();
                do at = worker.piece(ops, at);
                while (at && seconds() - start < 1.0);
                gate.arrive_and_wait();
                size_t calls = 0;
                start = seconds();
                while (!stop.load(std::memory_order_relaxed)) {
                    size_t next = worker.piece(ops, at);
                    calls += (next ? next : ops.size()) - at;
                    at = next;
                }
                rates[t] = static_cast<double>(calls) / (seconds() - start) / 1e6;
                worker.free_all();
            });
        }
        gate.arrive_and_wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(quick ? 200 : 500));
        stop = true;
        for (auto& thread : running) thread.join();
        double all = std::accumulate(rates.begin(), rates.end(), 0.0);
        auto [least, most] = std::minmax_element(rates.begin(), rates.end());
        std::printf("5-threads-%02d\t%s\t%.1f\t-\t-\t-\t%.2f Mcalls/s (a thread %.2f to %.2f)\n", count, from.name(), 1e3 * count / all, all,
                    *least, *most);
        std::fflush(stdout);
    }
}

int main(int argc, char** argv) {
    if (argc < 3) {
        std::fprintf(stderr, "usage: peers DIR async|torch|LIBRARY [quick]\n");
        return 1;
    }
    bool quick = argc > 3 && !std::strcmp(argv[3], "quick");
    must(cudaSetDevice(0), "the device");
    must(cudaFree(nullptr), "the context");
    std::unique_ptr<Allocator> from;
    if (!std::strcmp(argv[2], "async")) from = std::make_unique<Async>();
#ifdef WITH_TORCH
    if (!std::strcmp(argv[2], "torch")) from = std::make_unique<Torch>();
#endif
    std::string name = argv[2];
    if (name.find(".so") != std::string::npos) {
        auto end = name.rfind(":unmanaged");
        from = std::make_unique<Plug>(name.substr(0, end).c_str(), end != std::string::npos);
    }
    if (!from) {
        std::fprintf(stderr, "%s is not built in\n", argv[2]);
        return 1;
    }
    for (const auto& path : files(argv[1], ".ops")) row(*from, path, quick);
    threads(*from, argv[1], quick);
    return 0;
}
