// The order of the search's results. Sphinx shows only pages that have every word of a question, by their best single
// word. Here a page needs only some of the words: rare words count more than common ones, words of titles and of the
// task that docs/README.md names more than words of the text, and long pages less than short ones.
"use strict";

(() => {
  const TITLE = 3.0, HEADING = 1.5, TASK = 2.5, TEXT = 1.0, PARTIAL = 0.6;
  const RAREST = 10; // pages: a word that fewer have counts as one that this many have
  const MOST = 25; // results: the browser reads the page of each for its summary
  const HISTORY = /^docs\/decisions\/0|^CHANGELOG/; // why it is so, and since when: seldom the answer to a question
  const INSIDE = /^(docs\/development|engine|projections|spark_replay)\//; // for maintainers
  const listed = (found) => (found === undefined ? [] : Array.isArray(found) ? found : [found]);
  const own = (map, key) => (Object.hasOwn(map, key) ? map[key] : undefined);

  const stems = (text) => {
    const stemmer = new Stemmer();
    return new Set(splitQuery(text.toLowerCase()).map((word) => stemmer.stemWord(word)));
  };

  // What is the same for every question.
  let prepared = null;
  const prepare = () => {
    const { docnames, terms, titles } = Search._index;
    const lengths = docnames.map(() => 0);
    for (const found of Object.values(terms)) for (const file of listed(found)) lengths[file] += 1;
    const mean = lengths.reduce((a, b) => a + b, 0) / lengths.length;
    return {
      titles: titles.map(stems),
      tasks: docnames.map((name) => stems((window.REWINDMQ_TASKS || {})[name] || "")),
      spread: lengths.map((length) => 1 / (0.6 + (0.4 * length) / mean)),
    };
  };

  // The files with a word, and how much each is worth. A word that no page has stands for the words that begin with it.
  const holders = (word) => {
    const { terms, titleterms } = Search._index;
    const worth = new Map();
    const add = (files, value) => {
      for (const file of listed(files)) worth.set(file, Math.max(worth.get(file) || 0, value));
    };
    const named = (key, part) => {
      for (const file of listed(own(terms, key))) add(file, TEXT * prepared.spread[file] * part);
      add(own(titleterms, key), HEADING * part);
    };
    named(word, 1);
    if (!worth.size && word.length > 2)
      for (const key of new Set([...Object.keys(terms), ...Object.keys(titleterms)]))
        if (key.startsWith(word)) named(key, PARTIAL);
    prepared.tasks.forEach((task, file) => task.has(word) && add(file, TASK));
    prepared.titles.forEach((title, file) => title.has(word) && add(file, TITLE));
    return worth;
  };

  Search.performTermsSearch = (searchTerms, excludedTerms) => {
    const { docnames, filenames, titles } = Search._index;
    prepared ||= prepare();
    const scores = new Map();
    for (const word of searchTerms) {
      const worth = holders(word);
      const rarity = Math.log(1 + docnames.length / Math.max(worth.size, RAREST));
      for (const [file, value] of worth) {
        const before = scores.get(file) || { score: 0, words: 0 };
        scores.set(file, { score: before.score + rarity * value, words: before.words + 1 });
      }
    }
    for (const word of excludedTerms) for (const file of holders(word).keys()) scores.delete(file);
    const results = [...scores].map(([file, { score, words }]) => {
      const share = words / searchTerms.size;
      const weight = HISTORY.test(docnames[file]) ? 0.3 : INSIDE.test(docnames[file]) ? 0.7 : 1;
      return [docnames[file], titles[file], "", null, score * share * weight, filenames[file], SearchResultKind.text];
    });
    return results.sort((a, b) => b[4] - a[4]).slice(0, MOST);
  };
})();
