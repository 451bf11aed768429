/* write_run.c: writes the files of invented runs: write_run DIR SEED CALLS. For reaggregate.py. */
#include "tests/trace/invented_run.h"

#include <stdlib.h>

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: write_run DIR SEED CALLS\n");
        return 2;
    }
    struct run r;
    weir_error err = {0};
    invent_run(&r, strtoull(argv[2], NULL, 10), (uint32_t)strtoul(argv[3], NULL, 10));
    weir_status s = run_write(&r, argv[1], &err);
    if (s)
        fprintf(stderr, "write_run: %s: %s\n", err.where, err.message);
    run_free(&r);
    return s ? 1 : 0;
}
