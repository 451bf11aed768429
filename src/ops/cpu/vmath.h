/* vmath.h: exp, sigmoid, tanh and softplus over vectors, within a few units in the last place. NaN
 * stays NaN, infinities and huge arguments give the limits unless a function says otherwise. Used
 * by every kernel of this folder whose formula has a gate or a softmax. */
#ifndef WEIR_OPS_CPU_VMATH_H
#define WEIR_OPS_CPU_VMATH_H

#include "ops/cpu/vec.h"

/* x = n ln2 + r with |r| <= ln2/2. ln2 in two parts, the first short enough that n times it is
 * exact. */
ALWAYS vf vexp_split(vf x, vf *n) {
    *n = vround(x * vset(0x1.715476p0f));
    vf r = vnma(*n, vset(0x1.62e4p-1f), x);
    return vnma(*n, vset(0x1.7f7d1cp-20f), r);
}

/* exp(r) - 1 = r + r^2 q(r) for |r| <= ln2/2; q of degree 4 keeps the largest error of exp(r)
 * smallest, 4e-9. */
ALWAYS vf vexpm1_poly(vf r) {
    vf p = vset(0x1.6a241ap-10f);
    p = vfma(p, r, vset(0x1.1239f2p-7f));
    p = vfma(p, r, vset(0x1.5558f2p-5f));
    p = vfma(p, r, vset(0x1.555492p-3f));
    p = vfma(p, r, vset(0x1.fffffcp-2f));
    return vfma(p, r * r, r);
}

/* exp, for -87 <= x <= 87: the result and its reciprocal are normal numbers. */
ALWAYS vf vexp_near(vf x) {
    vf n, r = vexp_split(x, &n);
    return vscale(vexpm1_poly(r) + vset(1), n);
}

/* exp, for x <= 87; 0 from where it would not be a normal number. */
ALWAYS vf vexp(vf x) {
    return vkeep_where(vexp_near(vmax(vset(-87), x)), x, -87);
}

ALWAYS vf vsigmoid(vf x) {
    vf e = vexp_near(vmax(vset(-87), vmin(vset(87), -x)));
    return vkeep_where(vreciprocal(vset(1) + e), x, -87);
}

/* x sigmoid(x) where |x| is below 1e30. */
ALWAYS vf vsilu(vf x) {
    return x / (vset(1) + vexp_near(vmax(vset(-87), vmin(vset(87), -x))));
}

/* Through exp(2x) - 1, which keeps its digits near zero where 1 - 2/(exp(2x)+1) loses them. Beyond
 * 10 the result is 1 in f32. */
ALWAYS vf vtanh(vf x) {
    vf y = vmax(vset(-20), vmin(vset(20), x + x)), n, r = vexp_split(y, &n);
    vf power = vscale(vset(1), n);
    vf e = vfma(power, vexpm1_poly(r), power - vset(1));
    return e / (e + vset(2));
}

/* log(1 + exp x) = max(x, 0) + log1p(e), e = exp(-|x|) in (0, 1]; log1p(e) = 2 artanh(e/(2+e)), an
 * argument of at most 1/3, so that nine terms suffice. */
ALWAYS vf vsoftplus(vf x) {
    vf e = vexp(-vabs(x));
    vf s = e / (e + vset(2)), t = s * s;
    vf p = vset(1.0f / 17);
    for (int k = 15; k >= 3; k -= 2)
        p = vfma(p, t, vset(1.0f / (float)k));
    vf log1p = vfma(s * t, p, s);
    return vmax(vset(0), x) + (log1p + log1p);
}

#endif
