/* talk.h: what has been said so far in one play of a conversation, for turns that are sent with
 * their history. Answers are added by the loop; the thread that composes bodies reads those of
 * earlier turns, which no longer change. */
#ifndef WEIR_BENCH_TALK_H
#define WEIR_BENCH_TALK_H

#include <stdint.h>

struct talk {
    uint64_t play;
    uint32_t n_turns; /* of the session */
    struct talk *next;
    char *answer[]; /* n_turns; NULL: none */
};

struct talks {
    struct talk *first;
};

/* That of a play, made where it is not there; NULL without memory. */
struct talk *talks_of(struct talks *all, uint64_t play, uint32_t n_turns);
/* Copies `text` (n bytes) as the answer of a turn. */
void talk_answer(struct talk *t, uint32_t turn, const char *text, uint64_t n);
void talks_drop(struct talks *all, uint64_t play);
void talks_free(struct talks *all);

#endif
