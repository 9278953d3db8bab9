// Holds a stream until the host opens the gate, or until a limit in nanoseconds is over: no mistake of the host's may
// hang the device. One thread. CPU reference: `Sim::gate` of the simulated device.
//
// `cell` is two 4-byte words in pinned host memory. The host writes 1 into the first to open. The kernel writes the second:
//   1 running   2 ended because it was opened   3 ended because the limit was over
extern "C" __global__ void millpond_spin(volatile unsigned int *cell, unsigned long long limit_ns)
{
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    cell[1] = 1;
    __threadfence_system();
    do {
        if (cell[0] != 0) {
            cell[1] = 2;
            __threadfence_system();
            return;
        }
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < limit_ns);
    cell[1] = 3;
    __threadfence_system();
}
