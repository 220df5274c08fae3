/* wait.c - how the threads of the pool wait for each other.
 *
 * libgomp's threads spin before they sleep, 300,000 times. On a machine that others use too, a
 * spinning thread takes the core that the one it waits for needs; on a quiet one, waking up costs.
 * The demo on two cores, images/s:
 *   turns                     300,000   1,000          0
 *   load 13, float32          220-256   1,093-1,222    1,605-2,372
 *   quiet, bf16               10,600    10,400         9,200
 * 1,000 turns, some microseconds, lose little on a quiet machine and are far from the worst on a busy
 * one. The setting is read when libgomp is loaded, before main, so the program starts itself again
 * with it; a user's own setting is left alone.
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
