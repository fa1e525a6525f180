// NVFP4 on a GPU: the integer loops of kernels.py, kernels_choice.py and kernels_recover.py, one thread to a block of 16.
//
// No thread talks to another one, so the same text also runs on a processor, where the tests compare its bytes.
// Magnitudes of 16-bit floats are worked on in pairs, two to a 32-bit word. Bounds of 16-bit floats are stored plus 2.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define PAIRS 0x7fff7fffu
#define ONES 0x00010001u

__device__ __forceinline__ i64 this_thread() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }

__device__ __forceinline__ i64 all_threads() { return (i64)gridDim.x * blockDim.x; }

struct Block16 { u32 words[8]; };

__device__ __forceinline__ Block16 load_block(const uint4 *values, i64 block) {
    uint4 p = values[2 * block], q = values[2 * block + 1];
    return Block16{{p.x, p.y, p.z, p.w, q.x, q.y, q.z, q.w}};
}

__device__ __forceinline__ u32 largest_of(const Block16 &block) {
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) top = __vmaxu2(top, block.words[i] & PAIRS);
    return max(top & 0xffff, top >> 16);
}

// 1 in each half where the magnitude is at most a bound; ``bound`` is the bound plus 2 in both halves, ``word`` the
// floats themselves. No half borrows from the other.
__device__ __forceinline__ u32 within(u32 bound, u32 word) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return __viaddmin_s16x2_relu(bound, ~word | ~PAIRS, ONES);  // bound + 2 - magnitude - 1, from 0 to 1
#else
    return ~((((word | ~PAIRS) - bound + ONES) >> 15)) & ONES;
#endif
}

struct Bounds { u32 pairs[8]; };

// Eight 16-bit numbers, each in both halves of a word.
__device__ __forceinline__ Bounds spread(uint4 row) {
    const u32 words[4] = {row.x, row.y, row.z, row.w};
    Bounds bounds;
#pragma unroll
    for (int i = 0; i < 8; i++) bounds.pairs[i] = __byte_perm(words[i / 2], 0, i & 1 ? 0x3232 : 0x1010);
    return bounds;
}

// Codes of two elements in bits 0-3 of both halves.
__device__ __forceinline__ u32 codes_of_pair(u32 word, const Bounds &bounds) {
    u32 rest = 0;
#pragma unroll
    for (int k = 0; k < 7; k++) rest += within(bounds.pairs[k], word);
    u32 signs = (word >> 12) & ~(within(bounds.pairs[7], word) << 3) & 0x00080008u;
    return (0x00070007u - rest) | signs;
}

__device__ __forceinline__ u32 pack_four(u32 a, u32 b, u32 c, u32 d) {
    u32 low = a | (b << 8), high = c | (d << 8);
    return __byte_perm(low | (low >> 12), high | (high >> 12), 0x5410);
}

__device__ __forceinline__ uint2 codes_of_block(const Block16 &block, const Bounds &bounds) {
    u32 pairs[8];
#pragma unroll
    for (int i = 0; i < 8; i++) pairs[i] = codes_of_pair(block.words[i], bounds);
    uint2 codes;
    codes.x = pack_four(pairs[0], pairs[1], pairs[2], pairs[3]);
    codes.y = pack_four(pairs[4], pairs[5], pairs[6], pairs[7]);
    return codes;
}

extern "C" __global__ void amax_16(const uint4 *values, u32 *largest, i64 blocks) {
    u32 top = 0;
    for (i64 b = this_thread(); b < blocks; b += all_threads()) top = max(top, largest_of(load_block(values, b)));
    atomicMax(largest, top);
}

extern "C" __global__ void amax_32(const u32 *values, u32 *largest, i64 elements) {
    u32 top = 0;
    for (i64 i = this_thread(); i < elements; i += all_threads()) top = max(top, values[i] & 0x7fffffffu);
    atomicMax(largest, top);
}

extern "C" __global__ void encode_16(
    const uint4 *values, const u8 *scale_bytes, const uint4 *bounds, uint2 *codes, u8 *scales, i64 blocks
) {
    i64 b = this_thread();
    if (b >= blocks) return;
    Block16 block = load_block(values, b);
    u32 scale = scale_bytes[largest_of(block)];
    scales[b] = (u8)scale;
    codes[b] = codes_of_block(block, spread(bounds[scale]));
}

struct Block32 { u32 words[16]; };

__device__ __forceinline__ Block32 load_block_32(const uint4 *values, i64 block) {
    Block32 made;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 p = values[4 * block + i];
        made.words[4 * i] = p.x, made.words[4 * i + 1] = p.y, made.words[4 * i + 2] = p.z, made.words[4 * i + 3] = p.w;
    }
    return made;
}

__device__ __forceinline__ u32 largest_of_32(const Block32 &block) {
    u32 top = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) top = max(top, block.words[i] & 0x7fffffffu);
    return top;
}

__device__ __forceinline__ uint2 codes_of_block_32(const Block32 &block, const int *bounds) {
    u32 codes[2] = {0, 0};
    int row[8];
#pragma unroll
    for (int k = 0; k < 8; k++) row[k] = bounds[k];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int size = (int)(block.words[i] & 0x7fffffffu);
        u32 code = 0;
#pragma unroll
        for (int k = 0; k < 7; k++) code += size > row[k];
        code |= size > row[7] ? (block.words[i] >> 28) & 8 : 0;
        codes[i / 8] |= code << (4 * (i % 8));
    }
    uint2 made;
    made.x = codes[0], made.y = codes[1];
    return made;
}

// The upper half of the amax bits gives the byte or, rarely, one below it.
__device__ __forceinline__ u32 scale_of_32(u32 largest, const u8 *scale_bytes, const u32 *scale_bounds, u32 zero_byte) {
    u32 scale = scale_bytes[largest >> 16];
    while (largest >= scale_bounds[scale + 1]) scale++;
    return scale ? scale : zero_byte;
}

extern "C" __global__ void encode_32(
    const uint4 *values, const u8 *scale_bytes, const u32 *scale_bounds, const int *bounds, uint2 *codes, u8 *scales,
    i64 zero_byte, i64 blocks
) {
    i64 b = this_thread();
    if (b >= blocks) return;
    Block32 block = load_block_32(values, b);
    u32 scale = scale_of_32(largest_of_32(block), scale_bytes, scale_bounds, (u32)zero_byte);
    scales[b] = (u8)scale;
    codes[b] = codes_of_block_32(block, bounds + 8 * scale);
}

// Eight elements to a thread. ``rows`` [256] x 2: the low bytes of a scale's 16 entries, then the high bytes.
__device__ __forceinline__ u32 four_bytes(uint4 entries, u32 selector, u32 upper) {
    u32 low = __byte_perm(entries.x, entries.y, selector & 0x7777);
    u32 high = __byte_perm(entries.z, entries.w, selector & 0x7777);
    return (low & ~upper) | (high & upper);
}

extern "C" __global__ void decode_16(const u32 *codes, const u8 *scales, const uint4 *rows, uint4 *out, i64 halves) {
    i64 t = this_thread();
    if (t >= halves) return;
    u32 word = codes[t], scale = scales[t >> 1];
    uint4 low = rows[2 * scale], high = rows[2 * scale + 1];
    u32 made[4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        u32 selector = (word >> (16 * i)) & 0xffff;
        u32 upper = __byte_perm(0x0000ff00u, 0, (selector >> 3) & 0x1111);  // 0xff where the code is 8 or more
        u32 a = four_bytes(low, selector, upper), b = four_bytes(high, selector, upper);
        made[2 * i] = __byte_perm(a, b, 0x5140);
        made[2 * i + 1] = __byte_perm(a, b, 0x7362);
    }
    uint4 eight;
    eight.x = made[0], eight.y = made[1], eight.z = made[2], eight.w = made[3];
    out[t] = eight;
}

// Four elements to a thread; ``table`` [256, 16].
extern "C" __global__ void decode_32(const u16 *codes, const u8 *scales, const u32 *table, uint4 *out, i64 quarters) {
    i64 t = this_thread();
    if (t >= quarters) return;
    u32 word = codes[t];
    const u32 *row = table + 16 * scales[t >> 2];
    uint4 four;
    four.x = row[word & 15], four.y = row[(word >> 4) & 15], four.z = row[(word >> 8) & 15], four.w = row[word >> 12];
    out[t] = four;
}

// Magnitudes as integers, in units 7 bits below the last bit of a number with exponent field ``top``.
__device__ __forceinline__ u32 aligned(u32 magnitude, int stored, u32 top) {
    u32 field = magnitude >> stored, significand = magnitude & ((1u << stored) - 1);
    if (field) significand |= 1u << stored;
    u32 drop = top - (field ? field : 1);
    return drop < 31 ? (significand << 7) >> drop : 0;
}

// What is lost under a scale, up to a constant: every step is exact in float64, so the order of bytes is too.
__device__ __forceinline__ double loss_of(
    const u32 *sizes, const u32 *steps, const int *row, double value, double scale, double unit
) {
    i64 products = 0;
    int squares = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int size = (int)sizes[i];
        int halves = (size > row[0]) + (size > row[1]) + (size > row[2]) + (size > row[3]);
        halves += 2 * (size > row[4]) + 2 * (size > row[5]) + 4 * (size > row[6]);
        products += (i64)steps[i] * halves;
        squares += halves * halves;
    }
    double rest = value * scale * 0.25 * (double)squares - (double)products * unit;
    return value * rest;
}

// The byte of least loss: the first one wins a tie, then the smallest. ``sweep``: below, above, least byte.
__device__ __forceinline__ u32 best_scale(
    const u32 *sizes, int stored, u32 largest, u32 base, u32 other, const i64 *sweep, const int *bounds,
    const double *grid, const double *units, double scale
) {
    u32 top = largest >> stored;
    top = top ? top : 1;
    u32 steps[16];
#pragma unroll
    for (int i = 0; i < 16; i++) steps[i] = aligned(sizes[i], stored, top);
    double unit = units[top];
    double least = loss_of(sizes, steps, bounds + 8 * base, grid[base], scale, unit);
    int low = (int)max(max((i64)base - sweep[0], ((i64)base + 1) / 2), sweep[2]);
    int high = (int)min((i64)base + sweep[1], (i64)126);
    u32 best = base;
    for (int byte = low; byte < high + 2; byte++) {
        u32 tried = byte <= high ? (u32)byte : other;
        if (tried == base) continue;
        double loss = loss_of(sizes, steps, bounds + 8 * tried, grid[tried], scale, unit);
        if (loss < least) least = loss, best = tried;
    }
    return best;
}

// ``bounds`` int [128, 8] for both widths here; ``packed`` are those of encode_16.
extern "C" __global__ void choose_16(
    const uint4 *values, const u8 *scale_bytes, const u8 *others, const i64 *sweep, const int *bounds,
    const uint4 *packed, const double *grid, const double *units, uint2 *codes, u8 *scales, double scale, i64 blocks
) {
    i64 b = this_thread();
    if (b >= blocks) return;
    Block16 block = load_block(values, b);
    u32 largest = largest_of(block), best = scale_bytes[largest];
    if (largest) {
        u32 sizes[16];
#pragma unroll
        for (int i = 0; i < 16; i++) sizes[i] = (block.words[i / 2] >> (16 * (i % 2))) & 0x7fff;
        best = best_scale(sizes, 7, largest, best, others[largest], sweep, bounds, grid, units, scale);
    }
    scales[b] = (u8)best;
    codes[b] = codes_of_block(block, spread(packed[best]));
}

extern "C" __global__ void choose_32(
    const uint4 *values, const u8 *scale_bytes, const u8 *other_bytes, const u32 *scale_bounds, const u32 *other_bounds,
    const i64 *sweep, const int *bounds, const double *grid, const double *units, uint2 *codes, u8 *scales,
    double scale, i64 zero_byte, i64 blocks
) {
    i64 b = this_thread();
    if (b >= blocks) return;
    Block32 block = load_block_32(values, b);
    u32 largest = largest_of_32(block);
    u32 best = scale_of_32(largest, scale_bytes, scale_bounds, (u32)zero_byte);
    u32 other = scale_of_32(largest, other_bytes, other_bounds, (u32)zero_byte);
    if (largest) {
        u32 sizes[16];
#pragma unroll
        for (int i = 0; i < 16; i++) sizes[i] = block.words[i] & 0x7fffffffu;
        best = best_scale(sizes, 23, largest, best, other, sweep, bounds, grid, units, scale);
    }
    scales[b] = (u8)best;
    codes[b] = codes_of_block_32(block, bounds + 8 * best);
}

// How often each of 32,768 magnitudes occurs; with ``scales``, only in blocks whose scale is 0.
extern "C" __global__ void count_magnitudes(const uint4 *values, const u8 *scales, u32 *counts, i64 filtered, i64 blocks) {
    i64 b = this_thread();
    if (b >= blocks || (filtered && scales[b])) return;
    Block16 block = load_block(values, b);
#pragma unroll
    for (int i = 0; i < 16; i++) atomicAdd(counts + ((block.words[i / 2] >> (16 * (i % 2))) & 0x7fff), 1u);
}

// Eight magnitudes of a scale, each in both halves of a word.
__device__ __forceinline__ Bounds load_row(const uint4 *rows, u32 scale) {
    uint4 p = rows[2 * scale], q = rows[2 * scale + 1];
    return Bounds{{p.x, p.y, p.z, p.w, q.x, q.y, q.z, q.w}};
}

__device__ __forceinline__ bool on_row(const Block16 &block, const Bounds &row) {
    u32 differs = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        u32 word = block.words[i] & PAIRS, least = PAIRS;
#pragma unroll
        for (int k = 0; k < 8; k++) least = __vminu2(least, word ^ row.pairs[k]);
        differs |= least;
    }
    return differs == 0;
}

// The scale of a block on the grid: that of zeros for zeros; 0 if it is not on the grid.
__device__ __forceinline__ u32 solved(
    const Block16 &block, const u8 *first, const u16 *starts, const u8 *tries, const uint4 *rows
) {
    u32 largest = largest_of(block), scale = first[largest];
    if (on_row(block, load_row(rows, scale))) return scale;
    for (u32 k = starts[largest] + 1u; k < starts[largest + 1]; k++) {
        if (on_row(block, load_row(rows, tries[k]))) return tries[k];
    }
    return 0;
}

// ``flags``: 1 for a block on the grid, 2 for one of zeros, 0 for others.
extern "C" __global__ void match(
    const uint4 *values, const u8 *first, const u16 *starts, const u8 *tries, const uint4 *rows, u8 *flags, i64 blocks
) {
    i64 b = this_thread();
    if (b >= blocks) return;
    Block16 block = load_block(values, b);
    flags[b] = largest_of(block) == 0 ? 2 : solved(block, first, starts, tries, rows) != 0;
}

extern "C" __global__ void scales_of(
    const uint4 *values, const u8 *first, const u16 *starts, const u8 *tries, const uint4 *rows, u8 *scales, i64 blocks
) {
    i64 b = this_thread();
    if (b < blocks) scales[b] = (u8)solved(load_block(values, b), first, starts, tries, rows);
}

extern "C" __global__ void solve(
    const uint4 *values, const u8 *first, const u16 *starts, const u8 *tries, const uint4 *rows, const u8 *other_scales,
    const uint4 *other_bounds, uint2 *codes, u8 *scales, i64 blocks
) {
    i64 b = this_thread();
    if (b >= blocks) return;
    Block16 block = load_block(values, b);
    u32 scale = solved(block, first, starts, tries, rows);
    Bounds bounds;
    if (scale) {
        bounds = load_row(rows, scale);
#pragma unroll
        for (int k = 0; k < 7; k++) bounds.pairs[k] += 2 * ONES;
        bounds.pairs[7] = ONES;  // a bound of -1: every sign is kept
    } else {
        scale = other_scales[largest_of(block)];
        bounds = spread(other_bounds[scale]);
    }
    scales[b] = (u8)scale;
    codes[b] = codes_of_block(block, bounds);
}
