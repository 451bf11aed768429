/* talk.c: answers of plays under way. Called by the replay. */
#include "bench/talk.h"

#include <stdlib.h>
#include <string.h>

struct talk *talks_of(struct talks *all, uint64_t play, uint32_t n_turns) {
    for (struct talk *t = all->first; t; t = t->next)
        if (t->play == play)
            return t;
    struct talk *t = calloc(1, sizeof *t + n_turns * sizeof *t->answer);
    if (!t)
        return NULL;
    t->play = play;
    t->n_turns = n_turns;
    t->next = all->first;
    all->first = t;
    return t;
}

void talk_answer(struct talk *t, uint32_t turn, const char *text, uint64_t n) {
    if (turn >= t->n_turns)
        return;
    char *copy = malloc(n + 1);
    if (!copy)
        return;
    if (n > 0)
        memcpy(copy, text, n);
    copy[n] = 0;
    free(t->answer[turn]);
    t->answer[turn] = copy;
}

static void release(struct talk *t) {
    for (uint32_t i = 0; i < t->n_turns; i++)
        free(t->answer[i]);
    free(t);
}

void talks_drop(struct talks *all, uint64_t play) {
    for (struct talk **at = &all->first; *at; at = &(*at)->next)
        if ((*at)->play == play) {
            struct talk *t = *at;
            *at = t->next;
            release(t);
            return;
        }
}

void talks_free(struct talks *all) {
    while (all->first) {
        struct talk *t = all->first;
        all->first = t->next;
        release(t);
    }
}
