(document_title (line) @name) @h1
(title1 (line) @name) @h2
(title2 (line) @name) @h3
(title3 (line) @name) @h4
(title4 (line) @name) @h5
(title5 (line) @name) @h6
