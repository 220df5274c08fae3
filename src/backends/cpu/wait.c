/* wait.c - how the threads of the pool wait for each other.
 *
 * libgomp's threads spin before they sleep, 300,000 times. On a machine that others use too, a
 * spinning thread takes the core that the one it waits for needs: with two cores and a load of 13
 * the demo trained at 220-256 images/s so, at 1,600-2,400 when threads sleep at once. On a quiet
 * machine waking up costs: 9,200 images/s (bf16) when they sleep at once, 10,600 when they spin.
 * 1,000 turns, some microseconds, have both: 10,400, and the same as none under load. The setting
 * is read when libgomp is loaded, before main, so the program starts itself again with it; a user's
 * own setting is left alone.
 */
#include "backends/backend.h"

#include <stdlib.h>
#include <unistd.h>

void cpu_wait_asleep(char **argv)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY"))
        return;
    if (setenv("GOMP_SPINCOUNT", "1000", 0) == 0)
        (void)execv("/proc/self/exe", argv); /* where it fails, threads spin: slower, not wrong */
}
