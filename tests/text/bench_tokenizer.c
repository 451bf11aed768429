/* bench_tokenizer.c: how fast text becomes ids on one core. Not a test; run by hand:
 *   bench_tokenizer RANK_FILE TEXT_FILE [REPEATS]
 * prints the time to read the rank file, and the best and median of REPEATS whole encodings, in
 * processor time, so that other programs on the machine disturb little. */
#include "text/tokenizer.h"

#include "base/file.h"

#include <time.h>

static double processor_seconds(void) {
    return (double)clock() / CLOCKS_PER_SEC;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    char *ranks, *text;
    size_t n_ranks, n;
    struct tokenizer *t;
    weir_error err = {0};
    int repeats = argc > 3 ? atoi(argv[3]) : 5;
    if (argc < 3 || repeats < 1 || repeats > 1000) {
        fprintf(stderr, "usage: bench_tokenizer RANK_FILE TEXT_FILE [REPEATS]\n");
        return 2;
    }
    if (file_read(argv[1], 1 << 28, &ranks, &n_ranks, &err) ||
        file_read(argv[2], (size_t)1 << 32, &text, &n, &err)) {
        fprintf(stderr, "bench_tokenizer: %s: %s\n", err.where, err.message);
        return 1;
    }
    double start = processor_seconds();
    if (tokenizer_parse(ranks, n_ranks, NULL, 0, 1 << 20, &t, &err)) {
        fprintf(stderr, "bench_tokenizer: %s: %s\n", err.where, err.message);
        return 1;
    }
    double opened = processor_seconds() - start;
    double *took = malloc((size_t)repeats * sizeof *took);
    struct ids ids = {0};
    for (int i = 0; i < repeats && took; i++) {
        ids.n = 0;
        start = processor_seconds();
        tokenizer_encode(t, text, n, &ids);
        took[i] = processor_seconds() - start;
    }
    if (took) {
        qsort(took, (size_t)repeats, sizeof *took, by_value);
        printf("%" PRIu32
               " ranks read in %.0f ms; %.1f MB, %zu ids: best %.1f MB/s, median %.1f MB/s\n",
               tokenizer_ranks(t), opened * 1e3, (double)n / 1e6, ids.n, (double)n / 1e6 / took[0],
               (double)n / 1e6 / took[repeats / 2]);
    }
    free(took);
    ids_free(&ids);
    tokenizer_close(t);
    free(ranks);
    free(text);
    return 0;
}
