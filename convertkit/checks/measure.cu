// The checker's sums on a GPU: the order of additions of kernels.py, so the same bits.
//
// A thread owns one lane of a tile and walks through its chunks; nothing is summed across threads but integers. Several
// tiles of ``per`` elements are summed at a time, each for itself. Compiled without fused multiply-add.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define LANES 512

// Positions in ``counts``.
#define CHANGED 0
#define NONFINITE 1
#define FLUSHED 2
#define SATURATED 3
#define DIFFERENT_BITS 4
#define COUNTS 5

__device__ __forceinline__ double widened(const u16 *bits, i64 i) { return (double)__uint_as_float((u32)bits[i] << 16); }
__device__ __forceinline__ double widened(const u32 *bits, i64 i) { return (double)__uint_as_float(bits[i]); }
__device__ __forceinline__ u32 magnitude(const u16 *bits, i64 i) { return ((u32)bits[i] << 16) & 0x7fffffffu; }
__device__ __forceinline__ u32 magnitude(const u32 *bits, i64 i) { return bits[i] & 0x7fffffffu; }

// Values that planes decode to, by ``table`` [256 scale bytes, 16 codes].
struct PlaneSide {
    const u8 *codes, *scales;
    const double *table;
    __device__ __forceinline__ double at(i64 i) const {
        u32 code = codes[i >> 1] >> (4 * (int)(i & 1)) & 15u;
        return table[16 * scales[i >> 4] + code];
    }
};

template <typename Bits> struct DenseSide {
    const Bits *bits;
    __device__ __forceinline__ double at(i64 i) const { return widened(bits, i); }
};

__device__ __forceinline__ bool is_finite(double value) { return fabs(value) <= 1.7976931348623157e308; }

struct Sums {
    double reference, candidate, error, peak;
    u64 changed, nonfinite;
};

template <typename Mine, typename Yours>
__device__ __forceinline__ void add_pair(Sums &sums, const Mine &mine, const Yours &yours, i64 first, i64 end) {
    double values[4];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        i64 i = first + k * LANES;
        double r = i < end ? mine.at(i) : 0.0, v = i < end ? yours.at(i) : 0.0;
        bool kept = is_finite(r) && is_finite(v);
        sums.nonfinite += !kept;
        values[2 * k] = kept ? r : 0.0, values[2 * k + 1] = kept ? v : 0.0;
    }
    double r = values[0], v = values[1], s = values[2], w = values[3];
    double e = fabs(r - v), f = fabs(s - w), larger = e > f ? e : f;
    sums.reference += r * r + s * s;
    sums.candidate += v * v + w * w;
    sums.error += e * e + f * f;
    sums.peak = larger > sums.peak ? larger : sums.peak;
    sums.changed += (e != 0.0) + (f != 0.0);
}

__device__ __forceinline__ i64 this_thread() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }

template <typename Mine, typename Yours>
__device__ __forceinline__ void measure(
    const Mine &mine, const Yours &yours, double *lanes, u64 *counts, i64 per, i64 elements
) {
    i64 tile = this_thread() / LANES, lane = this_thread() % LANES, start = tile * per;
    if (start >= elements) return;
    i64 end = start + per < elements ? start + per : elements;
    lanes += tile * 4 * LANES, counts += tile * COUNTS;
    Sums sums = {0.0, 0.0, 0.0, 0.0, 0, 0};
#pragma unroll 4
    for (i64 first = start + lane; first < end; first += 2 * LANES) add_pair(sums, mine, yours, first, end);
    lanes[lane] = sums.reference;
    lanes[LANES + lane] = sums.candidate;
    lanes[2 * LANES + lane] = sums.error;
    lanes[3 * LANES + lane] = sums.peak;
    if (sums.changed) atomicAdd(counts + CHANGED, sums.changed);
    if (sums.nonfinite) atomicAdd(counts + NONFINITE, sums.nonfinite);
}

// Blocks that hold values and decode to zeros, and values beyond the top of their block.
template <typename Bits>
__device__ __forceinline__ void count(
    const Bits *bits, const u8 *codes, const u8 *scales, const float *tops, const u8 *starts, u64 *counts, i64 per,
    i64 blocks
) {
    i64 b = this_thread();
    if (b >= blocks) return;
    counts += 16 * b / per * COUNTS;
    u32 scale = scales[b], largest = 0, peak = 0, beyond = 0;
    float top = tops[scale];
    for (int i = 0; i < 16; i++) {
        u32 size = magnitude(bits, 16 * b + i);
        u32 code = codes[8 * b + i / 2] >> (4 * (i % 2)) & 7u;
        peak = max(peak, size), largest = max(largest, code);
        beyond += __uint_as_float(size) > top;
    }
    if (beyond) atomicAdd(counts + SATURATED, (u64)beyond);
    if (peak != 0 && largest < starts[scale]) atomicAdd(counts + FLUSHED, (u64)1);
}

template <typename Bits>
__device__ __forceinline__ void differ(const Bits *mine, const Bits *yours, u64 *counts, i64 per, i64 elements) {
    i64 i = this_thread();
    if (i < elements && mine[i] != yours[i]) atomicAdd(counts + i / per * COUNTS + DIFFERENT_BITS, (u64)1);
}

#define PLANES(name, Bits)                                                                                             \
    extern "C" __global__ void measure_planes_##name(                                                                  \
        const Bits *bits, const u8 *codes, const u8 *scales, const double *table, double *lanes, u64 *counts, i64 per, \
        i64 n                                                                                                          \
    ) {                                                                                                                \
        measure(DenseSide<Bits>{bits}, PlaneSide{codes, scales, table}, lanes, counts, per, n);                        \
    }                                                                                                                  \
    extern "C" __global__ void count_planes_##name(                                                                    \
        const Bits *bits, const u8 *codes, const u8 *scales, const float *tops, const u8 *starts, u64 *counts, i64 per,\
        i64 n                                                                                                          \
    ) {                                                                                                                \
        count(bits, codes, scales, tops, starts, counts, per, n);                                                      \
    }                                                                                                                  \
    extern "C" __global__ void measure_dense_##name(                                                                   \
        const Bits *mine, const Bits *yours, double *lanes, u64 *counts, i64 per, i64 n                                \
    ) {                                                                                                                \
        measure(DenseSide<Bits>{mine}, DenseSide<Bits>{yours}, lanes, counts, per, n);                                 \
    }                                                                                                                  \
    extern "C" __global__ void differ_##name(const Bits *mine, const Bits *yours, u64 *counts, i64 per, i64 n) {       \
        differ(mine, yours, counts, per, n);                                                                           \
    }

PLANES(16, u16)
PLANES(32, u32)
