/* main.c: finds the command. */
#include <stdio.h>

int main(void) {
    puts("weir");
    return 0;
}
