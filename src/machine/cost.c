/* cost.c: what a rate of tokens costs in dollars and joules. Called by commands, reports and
 * plans. */
#include "machine/prices.h"

#include <math.h>

struct cost cost_of(double tokens_per_second_per_gpu, double dollars_per_hour, double kilowatts) {
    double t = tokens_per_second_per_gpu > 0 ? tokens_per_second_per_gpu : NAN;
    double c = dollars_per_hour > 0 ? dollars_per_hour : NAN;
    double p = kilowatts > 0 ? kilowatts : NAN;
    return (struct cost){
        .tokens_per_dollar = t * 3600 / c,
        .dollars_per_million = c / (t * 3600 / 1e6),
        .tokens_per_second_per_megawatt = t * 1000 / p,
        .joules_per_token = p * 1000 / t,
    };
}

double cost_advantage(double tokens_per_dollar_a, double tokens_per_dollar_b) {
    return tokens_per_dollar_a / tokens_per_dollar_b - 1;
}

double cost_saving(double tokens_per_dollar_a, double tokens_per_dollar_b) {
    return 1 - tokens_per_dollar_b / tokens_per_dollar_a;
}

double energy_joules(const double *seconds, const double *watts, size_t n) {
    double joules = 0;
    for (size_t i = 1; i < n; i++)
        joules += (seconds[i] - seconds[i - 1]) * (watts[i] + watts[i - 1]) / 2;
    return n < 2 ? NAN : joules;
}
