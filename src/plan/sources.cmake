set(SOURCES tape.c closed_model.c closed_form.c closed_layer.c closed_walk.c closed_report.c)
set(TESTS closed_form_test.c)
