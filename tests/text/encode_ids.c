/* encode_ids.c: a filter for the tokenizer oracle (tests/text/oracle). Standard input holds texts,
 * each behind its length (32 bits, little-endian); standard output gets their ids the same way. */
#include "text/tokenizer.h"

#include "base/file.h"

#include <string.h>

static void give_up(const char *what, const char *why) {
    fprintf(stderr, "encode_ids: %s: %s\n", what, why);
    exit(1);
}

int main(int argc, char **argv) {
    char *ranks = NULL;
    size_t n_ranks;
    struct tokenizer *t;
    weir_error err = {0};
    if (argc != 2)
        give_up("usage", "encode_ids RANK_FILE");
    if (file_read(argv[1], 1 << 28, &ranks, &n_ranks, &err) ||
        tokenizer_parse(ranks, n_ranks, NULL, 0, 1 << 20, &t, &err))
        give_up(err.where, err.message);
    char *text = NULL;
    uint32_t n;
    struct ids ids = {0};
    while (fread(&n, sizeof n, 1, stdin) == 1) {
        text = realloc(text, (size_t)n + 1);
        if (!text || fread(text, 1, n, stdin) != n)
            give_up("standard input", "ends inside a text");
        ids.n = 0;
        tokenizer_encode(t, text, n, &ids);
        uint32_t count = (uint32_t)ids.n;
        if (fwrite(&count, sizeof count, 1, stdout) != 1 ||
            (count && fwrite(ids.data, sizeof *ids.data, count, stdout) != count))
            give_up("standard output", "cannot be written");
    }
    if (fflush(stdout))
        give_up("standard output", "cannot be written");
    ids_free(&ids);
    free(text);
    free(ranks);
    tokenizer_close(t);
    return 0;
}
