// Copies each piece of a packed buffer to its place, for n pieces. The table, in the buffer too, has three words a piece: the place, where in the buffer
// its bytes begin, how many they are. Both are equal modulo 16, so that all but a piece's ends moves 16 bytes a step. CPU reference: `unpack` in
// src/kernel/references.rs.
typedef unsigned char u8;
typedef unsigned long long u64;

extern "C" __global__ void millpond_unpack(const u8 *packed, u64 at, u64 n)
{
    const u64 *table = (const u64 *)(packed + at);
    for (u64 piece = blockIdx.x; piece < n; piece += gridDim.x) {
        u8 *to = (u8 *)table[3 * piece];
        const u8 *from = packed + table[3 * piece + 1];
        u64 bytes = table[3 * piece + 2];
        u64 head = (16 - (u64)to % 16) % 16;
        if (head > bytes)
            head = bytes;
        u64 wide = (bytes - head) / 16;
        for (u64 i = threadIdx.x; i < head; i += blockDim.x)
            to[i] = from[i];
        for (u64 i = threadIdx.x; i < wide; i += blockDim.x)
            ((uint4 *)(to + head))[i] = ((const uint4 *)(from + head))[i];
        for (u64 i = head + 16 * wide + threadIdx.x; i < bytes; i += blockDim.x)
            to[i] = from[i];
    }
}
