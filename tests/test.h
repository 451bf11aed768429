/* test.h: what every test program includes first. */
#ifndef WEIR_TESTS_TEST_H
#define WEIR_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A file of the source tree: models, vectors. The result is valid until the next call. */
static inline const char *source_path(const char *relative) {
    static char path[4096];
    const char *root = getenv("WEIR_SOURCE_ROOT");
    snprintf(path, sizeof path, "%s/%s", root ? root : ".", relative);
    return path;
}

#endif
