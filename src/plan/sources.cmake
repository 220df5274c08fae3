set(SOURCES graph_estimate.c verify.c torch_style.c torch_ops.c torch_attention.c tape.c closed_model.c closed_form.c closed_layer.c closed_walk.c closed_report.c page.c fit.c fit_levers.c fit_report.c)
set(TESTS closed_form_test.c)
snug_embed(page_html ${dir}/page.html ${CMAKE_BINARY_DIR}/gen/plan/page_html.c)
set(GENERATED ${CMAKE_BINARY_DIR}/gen/plan/page_html.c)
