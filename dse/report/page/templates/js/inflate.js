// Decompression at once, without a promise: printing waits for none, and so the page can be printed
// as soon as it is loaded. METHOD: RFC 1951 (DEFLATE) in RFC 1952 (gzip) as the page is written.
function inflate(packed) {
  const out = new Uint8Array(new DataView(packed.buffer).getUint32(packed.length - 4, true));
  // Ten bytes of header come first. Bits that were read and not yet used are in `pool`.
  let at = 10, place = 0, pool = 0, count = 0;
  const fill = (wanted) => { for (; count < wanted; count += 8) pool |= packed[at++] << count; };
  const drop = (bits) => { pool >>>= bits; count -= bits; };
  const take = (bits) => { fill(bits); const value = pool & ((1 << bits) - 1); drop(bits); return value; };
  // A canonical code as a table: the next bits of the stream give symbol * 16 + length of its code.
  const codeOf = (lengths) => {
    const longest = Math.max(1, ...lengths), table = new Uint16Array(1 << longest);
    for (let length = 1, code = 0; length <= longest; length++, code <<= 1) {
      lengths.forEach((own, symbol) => {
        if (own !== length) return;
        let turned = 0;
        for (let bit = 0; bit < length; bit++) turned |= (code >> bit & 1) << (length - 1 - bit);
        for (let entry = turned; entry < table.length; entry += 1 << length) table[entry] = symbol << 4 | length;
        code++;
      });
    }
    return { table, longest, mask: table.length - 1 };
  };
  const symbol = (code) => {
    fill(code.longest);
    const entry = code.table[pool & code.mask];
    drop(entry & 15);
    return entry >> 4;
  };
  // Lengths and distances: a first value and extra bits for each symbol.
  const steps = (first, extras) => extras.map((bits) => { const from = first; first += 1 << bits; return [from, bits]; });
  const spans = steps(3, Array.from({ length: 28 }, (_, i) => i < 8 ? 0 : (i >> 2) - 1));
  spans.push([258, 0]);
  const distances = steps(1, Array.from({ length: 30 }, (_, i) => i < 4 ? 0 : (i >> 1) - 1));
  const fixed = () => [codeOf(Array.from({ length: 288 }, (_, i) => i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8)), codeOf(new Array(30).fill(5))];
  const given = () => {
    const symbols = take(5) + 257, ways = take(5) + 1, lengths = new Array(19).fill(0), all = [];
    for (let i = 0, sent = take(4) + 4; i < sent; i++) lengths[[16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15][i]] = take(3);
    const code = codeOf(lengths);
    while (all.length < symbols + ways) {
      const next = symbol(code);
      if (next < 16) all.push(next);
      else {
        const value = next === 16 ? all[all.length - 1] : 0, times = next === 16 ? 3 + take(2) : next === 17 ? 3 + take(3) : 11 + take(7);
        for (let i = 0; i < times; i++) all.push(value);
      }
    }
    return [codeOf(all.slice(0, symbols)), codeOf(all.slice(symbols))];
  };
  for (let last = 0; !last;) {
    last = take(1);
    const kind = take(2);
    if (kind === 0) {
      // Stored as it is, from the next whole byte on.
      drop(count & 7);
      const size = take(16);
      take(16);
      for (let i = 0; i < size; i++) out[place++] = take(8);
      continue;
    }
    const [letters, ways] = kind === 1 ? fixed() : given();
    for (let next = symbol(letters); next !== 256; next = symbol(letters)) {
      if (next < 256) { out[place++] = next; continue; }
      const [span, more] = spans[next - 257], end = place + span + take(more);
      const [distance, further] = distances[symbol(ways)], back = distance + take(further);
      for (; place < end; place++) out[place] = out[place - back];
    }
  }
  return out;
}
