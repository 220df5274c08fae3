/* adapter_nodes.c - snug:Adapter: small trained matrices beside a frozen model. */
#include "runner/run_int.h"

#include "base/env.h"
#include "base/str.h"
#include "nn/peft.h"

static enum status config_of(
    struct run *r, const struct graph_node *n, struct adapter_config *c, const char **folder,
    struct err *e)
{
    static const char *const bases[] = {"none", "int8", "nf4"};
    const char *base = graph_param_str(n, "base"), *adapter = graph_param_str(n, "adapter");
    char path[1200];
    *c = (struct adapter_config){
        .rank = graph_param_i64(n, "rank"),
        .alpha = graph_param_f64(n, "alpha"),
        .dropout = graph_param_f64(n, "dropout"),
        .targets = graph_param_str(n, "targets"),
        .rslora = graph_param_bool(n, "rslora"),
        .double_quant = graph_param_bool(n, "double_quant")};
    for (int i = 0; i < 3; i++)
        if (str_eq(base, bases[i]))
            c->base = (enum quant_kind)i;
    /* qlora is lora over a base in few bits. */
    if (str_eq(graph_param_str(n, "kind"), "qlora") && c->base == QUANT_NONE)
        c->base = QUANT_NF4;
    *folder = NULL;
    if (!adapter[0])
        return ST_OK;
    TRY(run_model_path(adapter, path, sizeof path, e));
    *folder = arena_strdup(&r->memory, path);
    return peft_config_read(path, &r->memory, c, e);
}

enum status node_adapter(struct run *r, size_t node, struct err *e)
{
    const struct graph_node *n = graph_node_at(r->graph, node);
    struct adapter_config c;
    struct flow in;
    const char *folder;
    TRY(flow_get(r, node, "model", FLOW_MODEL, &in, e));
    TRY(config_of(r, n, &c, &folder, e));
    if (in.model->home && c.base != QUANT_NONE)
        return err_set(
            e, ST_INVALID,
            "parameter 'base' is \"%s\", and the model has been used in float32 before this node: "
            "its weights can only be stored in few bits when they are loaded",
            c.base == QUANT_NF4 ? "nf4" : "int8");
    TRY(model_adapt(in.model->model, &c, e));
    in.model->adapter = folder;
    in.model->adapter_id = n->id;
    flow_set(r, node, "model", in);
    double trainable = (double)model_trainable_count(in.model->model);
    flow_set(r, node, "trainable", (struct flow){.kind = FLOW_SCALAR, .scalar = trainable});
    return ST_OK;
}
