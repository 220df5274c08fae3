set(SOURCES dtype.c tensor.c vars.c program.c ops.c optim_state.c grad.c verify.c print.c build_math.c build_attention.c build_shape.c build_loss.c
    ops/gemm.c ops/conv.c ops/pool.c ops/norm.c ops/attention.c ops/element.c ops/recurrent.c ops/topk.c ops/reduce.c ops/view.c ops/lookup.c ops/loss.c
    ops/update.c)
set(TESTS ir_test_support.c dtype_test.c view_test.c ir_test.c grad_test.c verify_test.c emit_test.c)
# Numbers in few bits.
list(APPEND SOURCES quant.c ops/quant.c)
list(APPEND TESTS quant_test.c)
