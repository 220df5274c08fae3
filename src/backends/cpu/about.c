/* about.c - which libraries compute here, for result documents and checkpoints. */
#include "backends/backend.h"
#include "backends/cpu/dnnl.h"

json_t *cpu_libraries_json(void)
{
    json_t *o = json_object();
    char text[32];
    json_put_str(o, "onednn", onednn_version(text, sizeof text));
    return o;
}
