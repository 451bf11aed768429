/* unicode_tables.h: which sets of Kimi's pre-tokeniser a character belongs to. A two-stage table,
 * 38 kB, generated for Unicode 16.0 by tools/unicode/tables.mjs. Used by pretokenizer.c alone. */
#ifndef WEIR_TEXT_UNICODE_TABLES_H
#define WEIR_TEXT_UNICODE_TABLES_H

#include <stdint.h>

/* L, N, M ... are general categories, Han the script, space the property White_Space. The end of
 * the text is in no set: 0. */
enum char_class {
    CLASS_UPPER = 1,    /* Lu Lt Lm Lo M, not Han */
    CLASS_LOWER = 2,    /* Ll Lm Lo M, not Han */
    CLASS_NUMBER = 4,   /* N */
    CLASS_SPACE = 8,    /* space */
    CLASS_NEWLINE = 16, /* \r \n */
    CLASS_HAN = 32,
    CLASS_PREFIX = 64, /* neither \r \n L nor N: may stand before a word */
    CLASS_OTHER = 128, /* neither space, L nor N */
};

extern const uint8_t unicode_index[8704];
extern const uint8_t unicode_blocks[][128];

/* c < 0x110000 */
static inline unsigned unicode_class(uint32_t c) {
    return unicode_blocks[unicode_index[c >> 7]][c & 127];
}
/* c < 128: one load less */
static inline unsigned unicode_class_ascii(uint32_t c) {
    return unicode_blocks[0][c];
}

#endif
