/* Writes the invented sweep into a directory, for the browser test of the report and for the eye.
 */
#include "tests/bench/invented.h"

#include <stdio.h>

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: invent_runs DIR\n");
        return 2;
    }
    printf("%zu runs\n", invent_sweep(argv[1]));
    return 0;
}
