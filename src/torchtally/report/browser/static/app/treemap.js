// treemap
