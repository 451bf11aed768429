/* The loader on good checkpoints: every weight in its place, with the numbers of the file. */
#include "tests/test.h"

#include "base/file.h"
#include "load/weights.h"

#include <jansson.h>

struct loaded {
    struct model m;
    struct weights *w;
};

static struct loaded load(const char *relative) {
    struct loaded l;
    weir_error err = {0};
    const char *dir = source_path(relative);
    if (model_open(dir, &l.m, &err) || weights_open(dir, &l.m, &l.w, &err))
        fail_msg("%s: %s", err.where, err.message);
    return l;
}

static weir_status check_present(void *arg, const struct weight_spec *spec) {
    struct loaded *l = arg;
    const struct weight *v;
    if (spec->expert < 0)
        v = weights_get(l->w, spec->role, spec->layer);
    else
        v = &weights_experts(l->w, spec->role, (uint32_t)spec->layer)[spec->expert];
    assert_non_null(v->data);
    assert_int_equal(v->rows, spec->rows);
    if (spec->role != ROLE_A_LOG)
        assert_int_equal(v->cols, spec->cols);
    assert_int_equal(v->scale != NULL, spec->dtype == DTYPE_MXFP4);
    return WEIR_OK;
}

static void every_weight_of_the_bundled_models_is_found(void **state) {
    static const char *const dirs[] = {"models/tiny-k3", "models/micro-k3-odd",
                                       "models/micro-kimi-linear"};
    for (size_t i = 0; i < 3; i++) {
        struct loaded l = load(dirs[i]);
        assert_int_equal(model_each_weight(&l.m, check_present, &l), WEIR_OK);
        assert_null(weights_get(l.w, ROLE_Q_CONV, (int32_t)l.m.layers - 1)->data);
        assert_null(weights_experts(l.w, ROLE_EXPERT_W1, 0));
        weights_close(l.w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_of_the_bundled_models_is_found),
    };
    return cmocka_run_group_tests_name("weights", tests, NULL, NULL);
}
